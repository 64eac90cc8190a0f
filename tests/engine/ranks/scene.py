"""All that one test plays with: the ranks, decode, and what the ranks have told the sidecar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_hooks.hooks.agreement import WAITING_FOR_INPUT
from sidecar.model import Fact, RoomConcluded, TerminalStatus
from tests.engine.ranks.company import Company, Fork, RankEndedError, gathered
from tests.engine.ranks.decode import Decode
from tests.engine.ranks.spec import PAGES, SLOTS, Layout


class Scene:
    def __init__(self, ranks: Company, decode: Decode) -> None:
        self.ranks = ranks
        self.decode = decode
        self.admitted = 0
        self._facts: list[list[Fact]] = [[] for _ in ranks]
        self._delivered: set[tuple[int, int]] = set()

    def admit(self, rid: str, room: int, tokens: int) -> None:
        """A request that decode has shaken hands for; the next iteration takes it out of the bootstrap queue."""
        self.ranks.admit(rid, room, tokens)
        self.decode.shake(room, tokens)
        self.ranks.each("becomes", room, WAITING_FOR_INPUT)

    def facts(self) -> list[list[Fact]]:
        for number, new in enumerate(self.ranks.each("facts")):
            self._facts[number] += new
        return self._facts

    def told(self, room: int) -> list[int]:
        """For each rank how many ends without Success it has told of."""
        return [len(self.ends(facts, room, TerminalStatus.FAILED)) for facts in self.facts()]

    def succeeded(self, room: int) -> list[int]:
        return [len(self.ends(facts, room, TerminalStatus.SUCCESS)) for facts in self.facts()]

    def drained(self, room: int) -> list[bool]:
        """What the single end of each rank says of its transfers."""
        return [self.ends(facts, room, TerminalStatus.FAILED)[0].drained for facts in self.facts()]

    @staticmethod
    def ends(facts: list[Fact], room: int, status: TerminalStatus) -> list[RoomConcluded]:
        """One for each life: a late handshake has its end told again."""
        ends = {
            fact.life: fact
            for fact in facts
            if isinstance(fact, RoomConcluded) and fact.room == room and fact.status is status
        }
        return list(ends.values())

    def deliver(self) -> None:
        """The sidecar's part: decode is told of every end of drained ranks that it has not been told of, and acts."""
        ended = [
            (number, fact.room)
            for number, facts in enumerate(self.facts())
            for fact in facts
            if isinstance(fact, RoomConcluded) and fact.status is TerminalStatus.FAILED and fact.drained
        ]
        for number, room in ended:
            if (number, room) not in self._delivered:
                self._delivered.add((number, room))
                self.decode.notify(number % len(self.decode.ranks), room, number)
        self.decode.take_statuses()

    def inflight(self) -> Any:
        """The same on every rank, or the next poll hangs the engine."""
        return self.ranks.agreed("queues")["inflight"]

    def answers(self, rid: str) -> list[str]:
        """What the client was told, the same by every rank."""
        return [kind for answered, kind, _ in self.ranks.agreed("answers_but_words") if answered == rid]

    def play(self, *, limit: int = 12) -> None:
        """Iterates, with all transfers done in between, until nothing is left to do."""
        for _ in range(limit):
            self.ranks.each("settled")
            self.ranks.iterate()
            if not any(self.ranks.agreed("queues").values()):
                return
        raise AssertionError(f"still there: {self.ranks.each('queues')}")

    def is_clean(self, *rooms: int) -> bool:
        """Nothing is left on any rank: queues, tables, pages, slots, lives; and nothing of ours had to be contained."""
        self.ranks.each("settled")
        found = {
            "queues": [any(queues.values()) for queues in self.ranks.each("queues")],
            "tables": [self.ranks.each("tables", room) for room in rooms],
            "free": self.ranks.each("free"),
            "open": [counts.get("open", 0) for counts in self.ranks.each("lives")],
            "faults": self.ranks.each("faults"),
        }
        size = len(self.ranks)
        wanted = {
            "queues": [False] * size,
            "tables": [[[]] * size for _ in rooms],
            "free": [(PAGES, SLOTS)] * size,
            "open": [0] * size,
            "faults": [{}] * size,
        }
        assert wanted == found
        return True


@contextmanager
def staged(fork: Fork, directory: Path, layout: Layout | None = None, **options: Any) -> Iterator[Scene]:
    """`options`: of `gathered`."""
    with gathered(fork, layout or Layout(), **options) as ranks:
        decode = Decode(ranks, directory)
        try:
            yield Scene(ranks, decode)
        finally:
            decode.close()


Raise = Callable[..., Scene]

__all__ = ["Raise", "RankEndedError", "Scene", "staged"]
