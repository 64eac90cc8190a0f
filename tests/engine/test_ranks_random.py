"""Random plays on two ranks, for the interleavings that nobody thought of; a seed plays the same each time.
RANK_SEEDS in the environment plays more of them.

Whatever happened: the ranks stay in step, each client is answered once by each rank, nothing is left, decode is told
of every end without Success that it has shaken hands for, and what finished arrived whole.
"""

import os
import random
from dataclasses import dataclass, field

import pytest

from tests.engine.ranks.company import Member
from tests.engine.ranks.scene import Raise, Scene
from tests.engine.ranks.spec import Abort, Admit, Layout, Message

pytestmark = pytest.mark.engine

FIRST_ROOM = 5_000
STEPS = 60
SIZES = (4, 8, 24)
MOST_AT_ONCE = 4
FINISHED = ["FINISH_LENGTH"]
SEEDS = int(os.environ.get("RANK_SEEDS", "4"))


@dataclass
class Play:
    scene: Scene
    dice: random.Random
    rooms: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unmet: dict[str, set[int]] = field(default_factory=dict)
    """For each request the ranks that decode has not shaken hands with yet."""
    stopped: set[str] = field(default_factory=set)
    """Requests that something was done to: they may end either way."""

    @property
    def senders(self) -> list[Member]:
        return self.scene.decode.senders(self.scene.ranks)

    def step(self) -> None:
        moves = [self.admit, self.shake, self.shake, self.transfers, self.abort, self.decode_aborts, self.nothing]
        weights = [4, 3, 3, 3, 2, 1, 4]
        messages = self.dice.choices(moves, weights)[0]()
        self.scene.ranks.iterate(*messages)

    def nothing(self) -> list[Message]:
        return []

    def open(self) -> list[str]:
        answered = {rid for rid, _, _ in self.scene.ranks.agreed("answers_but_words")}
        return [rid for rid in self.rooms if rid not in answered]

    def admit(self) -> list[Message]:
        if len(self.open()) >= MOST_AT_ONCE:
            return []
        rid, room = f"r{len(self.rooms)}.", FIRST_ROOM + len(self.rooms)
        if self.stopped and self.dice.random() < 0.3:
            room = self.use_again(self.rooms[self.dice.choice(sorted(self.stopped))])
        self.rooms[rid], self.sizes[rid] = room, self.dice.choice(SIZES)
        self.unmet[rid] = {member.number for member in self.senders}
        if room == FIRST_ROOM + len(self.rooms) - 1 and self.dice.random() < 0.2:
            self.meet(rid)  # decode comes first
        return [Admit(rid, room, self.sizes[rid])]

    def use_again(self, room: int) -> int:
        """A router's retry. Decode has let go of the earlier request, if it ever had it; prefill may have it still."""
        for rid in self.of_room(room):
            if rid not in self.stopped:
                return FIRST_ROOM + len(self.rooms)
            self.unmet[rid] = set()
        self.scene.decode.pages.pop(room, None)
        return room

    def of_room(self, room: int) -> list[str]:
        return [rid for rid, its in self.rooms.items() if its == room]

    def shake(self) -> list[Message]:
        waiting = [rid for rid, numbers in self.unmet.items() if numbers]
        if waiting:
            self.meet(self.dice.choice(waiting))
        return []

    def meet(self, rid: str) -> None:
        """One rank or all that are left. A late handshake is not taken by the engine, so there is no waiting for it."""
        room = self.rooms[rid]
        if room not in self.scene.decode.pages:
            assert self.scene.decode.reserve(room, self.sizes[rid])
        numbers = self.unmet[rid]
        chosen = set(numbers) if self.dice.random() < 0.7 else {self.dice.choice(sorted(numbers))}
        for number in chosen:
            prefill = self.scene.ranks[number]
            self.scene.decode.fed_by(prefill).shake(prefill, room, self.scene.decode.pages[room])
        self.unmet[rid] = numbers - chosen

    def transfers(self) -> list[Message]:
        member = self.dice.choice(list(self.scene.ranks))
        if self.dice.random() < 0.5:
            member.hold()
        else:
            member.let_go()
        return []

    def abort(self) -> list[Message]:
        if self.dice.random() < 0.15:
            self.stopped |= set(self.rooms)
            return [Abort(everything=True)]
        if not self.rooms:
            return []
        rid = self.dice.choice(list(self.rooms))
        self.stopped.add(rid)
        return [Abort(rid)] * self.dice.choice((1, 1, 2))

    def decode_aborts(self) -> list[Message]:
        """One decode rank gives up; its peer follows with a delay of its own."""
        if open_now := self.open():
            rid = self.dice.choice(open_now)
            prefill = self.dice.choice(self.senders)
            self.stopped |= set(self.of_room(self.rooms[rid]))  # its word names the room alone
            self.scene.decode.fed_by(prefill).abort(prefill, self.rooms[rid])
        return []

    def finish(self) -> None:
        """Decode comes for whatever still waits for it; the ranks are given time."""
        self.scene.ranks.each("let_go")
        for rid in self.unmet:
            if rid in self.open():
                while self.unmet[rid]:
                    self.meet(rid)
        self.scene.play(limit=60)


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2, cp=2)], ids=["tp2", "tp2 x cp2"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_ranks_stay_in_step_and_nothing_is_left(raised: Raise, layout: Layout, seed: int) -> None:
    scene = raised(layout=layout, overlap=seed % 2 == 0)
    play = Play(scene, random.Random(seed))  # noqa: S311 - dice of a play
    for _ in range(STEPS):
        play.step()
    play.finish()

    for rid, room in play.rooms.items():
        answers = scene.answers(rid)
        assert len(answers) == 1, (rid, answers)
        if answers != FINISHED:
            assert rid in play.stopped, rid
        elif rid == play.of_room(room)[-1]:
            assert scene.decode.holds(rid, room), rid
    for room in set(play.rooms.values()):
        ends = [one + other for one, other in zip(scene.told(room), scene.succeeded(room), strict=True)]
        assert ends == [len(play.of_room(room))] * len(scene.ranks), room
    assert scene.is_clean(*set(play.rooms.values()))
