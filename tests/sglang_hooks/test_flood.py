"""More than a rank keeps: what is let go first, and where it is counted."""

from collections.abc import Callable

import pytest

from sglang_hooks import door as door_module
from sglang_hooks import doubts, life
from sglang_hooks.door import Door
from sglang_hooks.doubts import Doubts, Held
from sglang_hooks.lives import LifeTable
from sglang_hooks.rank import Rank
from sidecar.model import DecodeEndpoint
from tests.sglang_hooks.conftest import hello

ROOM = 7
ENDPOINTS = [DecodeEndpoint("10.0.0.7", 7_000 + number) for number in range(4)]


@pytest.fixture
def rank(make_rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch) -> Rank:
    """Of two endpoints for each life."""
    monkeypatch.setattr(life, "ENDPOINT_LIMIT", 2)
    return make_rank()


@pytest.mark.parametrize("when", ["early", "open", "late"])
def test_a_life_has_so_many_endpoints(rank: Rank, when: str) -> None:
    if when != "early":
        opened = rank.open(ROOM)
        if when == "late":
            rank.release(opened, "Aborted")
    for endpoint in (*ENDPOINTS, ENDPOINTS[0]):
        rank.meet(ROOM, endpoint, "s")
    known = rank.table.find_early(ROOM) if when == "early" else rank.table.find(ROOM, 1)

    assert known is not None
    assert set(known.endpoints) == set(ENDPOINTS[:2])
    assert rank.counts.handshakes_over_limit == 2


def test_messages_are_held_up_to_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "BYTES_LIMIT", 100)
    held = Doubts()
    message = [b"x" * 30, b"y" * 20]
    taken = [held.hold(Held(room, ENDPOINTS[0], "s", message, 1.0)) for room in (1, 2, 3)]
    held.take(1)
    taken.append(held.hold(Held(4, ENDPOINTS[0], "s", message, 1.0)))
    held.give_up(2, ENDPOINTS[0])
    taken.append(held.hold(Held(5, ENDPOINTS[0], "s", message, 1.0)))

    assert taken == [True, True, False, True, True]


def test_a_record_that_owes_nothing_is_evicted_before_one_that_does() -> None:
    table = LifeTable(ttl_s=300.0, record_limit=2)
    lives = [table.open(room) for room in (1, 2, 3, 4)]
    for each in lives:
        each.concluded = True
    for owing in (lives[0], lives[2], lives[3]):
        owing.join(ENDPOINTS[0], "s")
    for each in lives[:3]:
        table.close(each, now=1.0)
    kept = [each.room for each in table.lives()]
    table.close(lives[3], now=1.0)

    assert kept == [1, 3, 4]  # 4 is still open
    assert [each.room for each in table.lives()] == [3, 4]
    assert (table.losses.records_evicted, table.losses.owed_evicted) == (2, 1)


def test_a_tokenizer_process_remembers_so_many_rooms_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the oldest it then says that no request has it."""
    monkeypatch.setattr(door_module, "IN_USE_LIMIT", 2)
    door = Door(hello=hello("door"), socket="/nobody", record_ttl_s=300.0, on_absent=lambda: None)
    for room in (1, 2, 3):
        door.accept(room)

    assert [door.is_in_use(room) for room in (1, 2, 3)] == [False, True, True]
    assert door.counts.in_use_evicted == 1
