"""What each fact of a rank changes: in the lives of its rooms, and in what decode endpoints are owed."""

from collections.abc import Callable
from typing import Any, assert_never

from sidecar.core.keys import LifeKey, NoticeKey, Outcome
from sidecar.core.outbox import Outbox
from sidecar.core.owed import NoticeState, OwedNotice
from sidecar.core.ranks import Rank
from sidecar.core.room import Claim, Handshake, Owe, Reaffirm, Room, RoomState, Settle
from sidecar.core.rooms import End, RoomTable
from sidecar.core.stats import Stats
from sidecar.model import (
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Goodbye,
    Notice,
    RoomConcluded,
    RoomOpened,
)

OnReaffirm = Callable[[Rank, LifeKey, Reaffirm], None]
Rule = Callable[[Rank, list[Any], set[int], float], None]


class Intake:
    """`backends` are those whose status messages can be written. `on_reaffirm`: the rank asks about something settled.

    `rules` holds one rule for each kind of fact. It is called with a rank, facts of that kind that came together, the
    ids of those that are replays, and the time.
    """

    def __init__(
        self, *, rooms: RoomTable, outbox: Outbox, stats: Stats, backends: frozenset[str], on_reaffirm: OnReaffirm
    ) -> None:
        self._rooms = rooms
        self._outbox = outbox
        self._stats = stats
        self._backends = backends
        self._on_reaffirm = on_reaffirm
        self.rules: dict[type[Fact], Rule] = {
            RoomOpened: self._opened,
            DecodeHandshake: self._shaken_hands,
            RoomConcluded: self._concluded,
            DecodeAborted: self._aborted,
            DecodeAcknowledged: self._acknowledged,
            DecodeRegistered: self._registered,
            Goodbye: self._said_goodbye,
        }

    def conclude(self, rank: Rank, fact: RoomConcluded, now: float) -> None:
        hello = rank.hello
        room = self._rooms.concluded(hello.process, fact, ttl_s=hello.record_ttl_s, now=now)
        if room is None:
            return
        if room.state is RoomState.FAILED:
            self._tell_all(rank, room, now)
        if not room.owed:
            self._rooms.note_finished(room)

    def _concluded(self, rank: Rank, facts: list[RoomConcluded], replayed: set[int], now: float) -> None:
        for fact in facts:
            self.conclude(rank, fact, now)

    def _opened(self, rank: Rank, facts: list[RoomOpened], replayed: set[int], now: float) -> None:
        process = rank.hello.process
        for fact in facts:
            key = LifeKey(process, fact.room, fact.life)
            if self._rooms.opened(key, now) and id(fact) not in replayed:
                self._outbox.open_newer_life(key, now)

    def _shaken_hands(self, rank: Rank, facts: list[DecodeHandshake], replayed: set[int], now: float) -> None:
        process, ttl_s = rank.hello.process, rank.hello.record_ttl_s
        for fact in facts:
            key = LifeKey(process, fact.room, fact.life)
            self._outbox.void_older(key, fact.endpoint, Outcome.SUPERSEDED, now)
            claims = self._rooms.handshake(key, fact, is_replay=id(fact) in replayed, ttl_s=ttl_s, now=now)
            if rank.backend in self._backends:
                self._outbox.expect(fact.endpoint, now)
            self._perform(rank, key, claims, now)

    def _aborted(self, rank: Rank, facts: list[DecodeAborted], replayed: set[int], now: float) -> None:
        for fact in facts:
            key = LifeKey(rank.hello.process, fact.room, fact.life)
            self._outbox.void_older(key, fact.endpoint, Outcome.DECODE_ABORTED, now)
            self._perform(rank, key, self._rooms.aborted(key, fact.endpoint, fact.seq, now), now)

    def _acknowledged(self, rank: Rank, facts: list[DecodeAcknowledged], replayed: set[int], now: float) -> None:
        for fact in facts:
            key = LifeKey(rank.hello.process, fact.room, fact.life)
            self._perform(rank, key, self._rooms.acknowledged(key, fact.endpoint, fact.seq), now)

    def _registered(self, rank: Rank, facts: list[DecodeRegistered], replayed: set[int], now: float) -> None:
        for fact in facts:
            if rank.registered(fact.endpoint, fact.session, fact.seq):
                self._outbox.restarted(rank.hello.process, fact.endpoint, fact.session, now)

    def _said_goodbye(self, rank: Rank, facts: list[Goodbye], replayed: set[int], now: float) -> None:
        rank.has_said_goodbye = True

    def _perform(self, rank: Rank, key: LifeKey, claims: list[Claim], now: float) -> None:
        for claim in claims:
            match claim:
                case Owe():
                    self._tell(rank, key, claim, now)
                case Settle():
                    self._outbox.end(NoticeKey(key, claim.endpoint), claim.outcome, now)
                case Reaffirm():
                    self._on_reaffirm(rank, key, claim)
                case _:
                    assert_never(claim)

    def _tell_all(self, rank: Rank, room: Room, now: float) -> None:
        """The life has failed: everyone who shook hands is owed a notice."""
        key = room.key
        end = self._rooms.end_of(key, now)
        notice = Notice(key.room, rank.hello.prefill_rank, end.cause, rank.backend)
        for endpoint, shaken in room.endpoints.items():
            if shaken.is_settled or not self._can_tell(rank, endpoint, shaken):
                continue
            if self._outbox.owe(owed_notice(key, endpoint, shaken, notice, end), is_news=False, now=now):
                room.note_owed()

    def _tell(self, rank: Rank, key: LifeKey, claim: Owe, now: float) -> None:
        """A handshake came after the end, or came again."""
        if not self._can_tell(rank, claim.endpoint, claim.shaken):
            return
        end = self._rooms.end_of(key, now)
        notice = Notice(key.room, rank.hello.prefill_rank, end.cause, rank.backend)
        owed = owed_notice(key, claim.endpoint, claim.shaken, notice, end)
        if claim.is_news:
            owed.owed_since = now
        self._stats.handshakes_late += claim.is_news
        if self._outbox.owe(owed, is_news=claim.is_news, now=now) and (room := self._rooms.find(key)):
            room.note_owed()

    def _can_tell(self, rank: Rank, endpoint: DecodeEndpoint, shaken: Handshake) -> bool:
        if rank.has_restarted(endpoint, shaken.session, shaken.seq):
            self._stats.notices_suppressed["restarted"] += 1
            shaken.is_settled = True
            return False
        if rank.backend not in self._backends:
            self._stats.notices_suppressed["wire"] += 1
            return False
        return True


def owed_notice(key: LifeKey, endpoint: DecodeEndpoint, shaken: Handshake, notice: Notice, end: End) -> OwedNotice:
    state = NoticeState.TAKEN_OVER if shaken.handed_off else NoticeState.PENDING
    return OwedNotice(
        key,
        endpoint,
        shaken.seq,
        notice,
        shaken.session,
        end.owed_since,
        end.expires_at,
        end.has_newer_life,
        state,
        shaken.handed_off,
    )
