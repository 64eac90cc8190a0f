"""Requests that a prefill server's tokenizer process refuses, so that no rank sees them: what is passed between that
process and the ranks of its engine. Nothing is decided here about a room; the ranks do, who hear decode.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from sidecar.core.ranks import Rank, RankTable
from sidecar.core.stats import Stats
from sidecar.model import (
    TOKENIZER,
    Fact,
    Reply,
    RoomAnswered,
    RoomEnded,
    RoomQueried,
    RoomQuery,
    RoomRefused,
    TokenizerJoined,
)

REFUSAL_LIMIT = 4096

Rule = Callable[[Rank, list[Any], set[int], float], None]


class Kept(Struct, frozen=True):
    engine: str
    word: RoomEnded
    expires_at: float


class Refusals:
    """The last refusal of each room is kept for ranks that connect later, for as long as decode may wait there.

    `rules`: as in Intake. `replies_to(process)` is where to put what that process is told.
    """

    def __init__(
        self,
        *,
        ranks: RankTable,
        replies_to: Callable[[str], list[Reply]],
        stats: Stats,
        limit: int = REFUSAL_LIMIT,
    ) -> None:
        self._ranks = ranks
        self._replies_to = replies_to
        self._stats = stats
        self._limit = limit
        self._kept: OrderedDict[tuple[str, int], Kept] = OrderedDict()
        self.rules: dict[type[Fact], Rule] = {
            RoomRefused: self._refused,
            RoomQueried: self._queried,
            RoomAnswered: self._answered,
        }

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Refusals kept={len(self._kept)}>"

    def greet(self, newcomer: Rank, now: float) -> None:
        """It has said hello: whoever it can ask, or be asked by, is made known."""
        engine = newcomer.hello.engine
        if newcomer.hello.role == TOKENIZER:
            self._tell_ranks(engine, TokenizerJoined())
        elif newcomer.hello.hears_refusals:
            self._forget_expired(now)
            replies = self._replies_to(newcomer.hello.process)
            replies += [TokenizerJoined() for _ in self._tokenizers(engine)]
            replies += [kept.word for kept in self._kept.values() if kept.engine == engine]

    def _refused(self, rank: Rank, facts: list[RoomRefused], replayed: set[int], now: float) -> None:
        engine, ttl_s = rank.hello.engine, rank.hello.record_ttl_s
        for fact in facts:
            at_s = min(fact.at_s, now)
            word = RoomEnded(fact.room, at_s, 0.0, at_s, fact.cause, fact.http_status)
            self._kept.pop((engine, fact.room), None)
            self._kept[engine, fact.room] = Kept(engine, word, at_s + ttl_s)
            self._stats.rooms_refused += id(fact) not in replayed
            self._tell_ranks(engine, word)
        self._forget_expired(now)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)
            self._stats.refusals_evicted += 1

    def _queried(self, rank: Rank, facts: list[RoomQueried], replayed: set[int], now: float) -> None:
        for tokenizer in self._tokenizers(rank.hello.engine):
            self._replies_to(tokenizer.hello.process).extend([RoomQuery(fact.room) for fact in facts])

    def _answered(self, rank: Rank, facts: list[RoomAnswered], replayed: set[int], now: float) -> None:
        """To all ranks of the engine: what is true for the one that asked is true for the others."""
        for fact in facts:
            word = RoomEnded(
                fact.room, fact.as_of_s, fact.accepted_at_s, fact.refused_until_s, fact.cause, fact.http_status
            )
            self._tell_ranks(rank.hello.engine, word)

    def _tell_ranks(self, engine: str, reply: Reply) -> None:
        for rank in self._ranks.connected:
            hello = rank.hello
            if hello.engine == engine and hello.role != TOKENIZER and hello.hears_refusals:
                self._replies_to(hello.process).append(reply)

    def _tokenizers(self, engine: str) -> Iterator[Rank]:
        return (
            rank
            for rank in self._ranks.connected
            if rank.hello.role == TOKENIZER and rank.hello.engine == engine and rank.hello.hears_refusals
        )

    def _forget_expired(self, now: float) -> None:
        while self._kept and next(iter(self._kept.values())).expires_at <= now:
            self._kept.popitem(last=False)
