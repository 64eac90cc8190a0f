"""10,000 random orders of handshake, arrival at prefill, refusal, abort and reuse of the room, in some of which the
sidecar is killed: no request failed that should run, none left hung. Each guard is also taken out: then an order is
found that goes wrong.

`PD_SIDECAR_LONG=1` plays all 10,000 (`make orders`); the normal run a twentieth of them.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_hooks import senderless
from sglang_hooks.door import Door
from sglang_hooks.lives import LifeTable
from sglang_hooks.senderless import Senderless
from sidecar.core.refusals import Refusals
from sidecar.model import DecodeEndpoint, RoomEnded
from tests.orders.plays import Play, ViolationError
from tests.orders.world import World

ORDERS = 10_000 if os.environ.get("PD_SIDECAR_LONG") else 500
PARTS = 10
GUARD_LIMIT = 2_000
"""So many orders may it take until a missing guard shows."""


def play(orders: range) -> None:
    """One after the other in one world. Raises ViolationError."""
    current: Play | None = None

    def on_notice(endpoint: DecodeEndpoint, room: int, rank: int) -> None:
        if current is not None and current.room == room:
            current.notice(endpoint, rank)

    world = World(on_notice)
    for number in orders:
        current = Play(world, number + 1, random.Random(number))  # noqa: S311 - an order that can be played again
        current.run()
        world.let_time_pass()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_request_is_failed_that_should_run_and_none_is_left_hung(part: int) -> None:
    each = ORDERS // PARTS
    play(range(part * each, (part + 1) * each))


Patch = Callable[[pytest.MonkeyPatch], None]
ended_until = senderless._ended_until  # noqa: SLF001 - taken out below
judge_early = Senderless._judge_early  # noqa: SLF001


def nobody_asks(patch: pytest.MonkeyPatch) -> None:
    """A handshake for an ended room is answered at once, as if it were late."""
    patch.setattr(Senderless, "tokenizer_joined", lambda _self: None)


def a_refusal_ends_a_live_request(patch: pytest.MonkeyPatch) -> None:
    def conclude_open(self: Any, word: RoomEnded) -> None:
        life = self._book.table.find_open(word.room)
        if life is not None and word.refused_until_s and not life.succeeded:
            self._conclude(life, word.cause, 0)
        judge_early(self, word)

    patch.setattr(Senderless, "_judge_early", conclude_open)


def a_refusal_ends_whoever_came_since(patch: pytest.MonkeyPatch) -> None:
    split = LifeTable.split_early
    patch.setattr(LifeTable, "split_early", lambda self, room, _until_s: split(self, room, float("inf")))


def who_came_since_is_not_asked_about(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Senderless, "_ask", lambda _self, _room: None)


def the_ended_request_counts_as_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """The tokenizer process has not heard yet that a rank has ended it."""

    def newer(word: RoomEnded, end: Any, *, has_sender: bool) -> tuple[float, bool]:
        if word.accepted_at_s:
            return word.accepted_at_s, False
        return ended_until(word, end, has_sender=has_sender)

    patch.setattr(senderless, "_ended_until", newer)


def those_who_stay_keep_their_number(patch: pytest.MonkeyPatch) -> None:
    """The sidecar knows them in the life that has ended."""
    patch.setattr(Senderless, "_tell_anew", lambda _self, _rest: None)


def an_acceptance_leaves_the_end_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeTable, "accept", lambda _self, _room, *, now: None)


def the_sidecar_keeps_refusals_to_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Refusals, "_refused", lambda *_: None)


def a_successor_is_not_told_of_refusals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Door, "replay", lambda _self: iter(()))


def a_successor_is_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Senderless, "tokenizer_joined", lambda self: setattr(self, "has_tokenizer", True))


def the_scheduler_keeps_refusals_to_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Senderless, "refuse", lambda *_: None)


GUARDS: list[Patch] = [
    nobody_asks,
    a_refusal_ends_a_live_request,
    a_refusal_ends_whoever_came_since,
    who_came_since_is_not_asked_about,
    the_ended_request_counts_as_a_newer_one,
    those_who_stay_keep_their_number,
    an_acceptance_leaves_the_end_in_place,
    the_sidecar_keeps_refusals_to_itself,
    the_scheduler_keeps_refusals_to_itself,
    a_successor_is_not_told_of_refusals,
    a_successor_is_not_asked_again,
]


@pytest.mark.parametrize("without", GUARDS, ids=lambda guard: guard.__name__)
def test_each_guard_is_needed(without: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)

    with pytest.raises(ViolationError):
        play(range(GUARD_LIMIT))
