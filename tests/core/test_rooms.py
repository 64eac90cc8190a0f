"""RoomTable: bounds, evictions and their counters, seen through the notifier."""

import pytest

from sidecar.core.keys import LifeKey
from sidecar.core.limits import OutboxLimits, RoomLimits
from sidecar.core.rooms import GENERIC_CAUSE
from sidecar.model import (
    DecodeEndpoint,
    Fact,
    Notice,
    Settled,
)
from tests.core.scene import E1, E2, START, TTL_S, Scene, hello, key


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


def test_an_evicted_record_still_answers_though_without_its_cause() -> None:
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join()
    scene.failed(1, 1)
    scene.failed(2, 1)
    late = scene.handshake(1, 1, E1)

    assert scene.sent == [(E1, 1, Notice(0, GENERIC_CAUSE, "mooncake"))]
    assert scene.notifier.stats.records_evicted_early == 1
    assert scene.notifier.rooms.tombstones == 1
    scene.advance(5.0)
    scene.tell(late)

    assert scene.settled() == [Settled(1, 1, E1), Settled(1, 1, E1)]
    assert len(scene.sent) == 1


def test_an_expired_end_of_an_unknown_life_is_nothing(scene: Scene) -> None:
    scene.failed(1, 1, at_s=START - TTL_S)

    assert scene.notifier.rooms.records == 0


def test_a_buried_life_does_not_come_back() -> None:
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join()
    facts: list[Fact] = [scene.opened(1, 1), scene.failed(1, 1)]
    scene.failed(2, 1)
    for fact in facts:
        scene.tell(fact)

    assert scene.notifier.rooms.open_rooms == 0
    assert scene.notifier.rooms.records == 1


def test_a_lost_tombstone_is_counted() -> None:
    scene = Scene(rooms=RoomLimits(records=1, tombstones=1))
    scene.join()
    for room in (1, 2, 3):
        scene.failed(room, 1)

    assert scene.notifier.stats.tombstones_lost == 1
    assert repr(scene.notifier.rooms) == "<RoomTable open=0 records=1 tombstones=1>"


def test_the_oldest_record_goes_though_another_expires_sooner() -> None:
    """Guards against an engine whose records are kept for years and one whose own then never stay."""
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join("p", hello("p", ttl_s=1e9))
    scene.join("q")
    scene.failed(1, 1, process="p")
    scene.failed(2, 1, process="q")

    assert scene.notifier.rooms.find(LifeKey("p", 1, 1)) is None
    assert scene.notifier.rooms.find(LifeKey("q", 2, 1)) is not None


@pytest.mark.parametrize("expired", [10, 98])
def test_records_that_expire_behind_an_older_one_are_no_records_any_more(expired: int) -> None:
    """Few of them wait behind it, many are swept."""
    scene = Scene(rooms=RoomLimits(records=100))
    scene.join("p", hello("p", ttl_s=1e9))
    scene.join("q")
    scene.failed(1, 1, process="p")
    for room in range(2, 2 + expired):
        scene.failed(room, 1, process="q")
    scene.advance(TTL_S)
    for room in range(1_000, 1_099):
        scene.failed(room, 1, process="q")
    assert (scene.notifier.rooms.records, scene.notifier.stats.records_evicted_early) == (100, 0)
    for room in (2_000, 2_001):
        scene.failed(room, 1, process="q")

    assert scene.notifier.rooms.records == 100
    assert [scene.notifier.rooms.find(LifeKey(*key)) for key in (("p", 1, 1), ("q", 1_000, 1))] == [None, None]
    assert scene.notifier.rooms.find(LifeKey("q", 1_001, 1)) is not None


def test_an_undrained_record_leaves_no_tombstone() -> None:
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join()
    scene.failed(1, 1, drained=False)
    scene.failed(2, 1)

    assert scene.notifier.rooms.tombstones == 0


def test_tombstones_end_with_their_time() -> None:
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join()
    scene.failed(1, 1)
    scene.failed(2, 1)
    scene.advance(TTL_S)

    assert scene.notifier.rooms.tombstones == 0
    assert scene.notifier.rooms.records == 0


def test_a_life_whose_tombstone_is_void_begins_anew() -> None:
    """Its tombstone lies behind one that is kept for longer."""
    scene = Scene(rooms=RoomLimits(records=1))
    scene.join("p", hello("p", ttl_s=2 * TTL_S))
    scene.join("q")
    scene.failed(1, 1, process="p")
    scene.failed(1, 1, process="q")
    scene.failed(2, 1, process="q")
    scene.advance(TTL_S)
    scene.opened(1, 1, process="q")
    scene.advance(TTL_S)

    assert scene.notifier.rooms.tombstones == 0
    assert scene.notifier.rooms.find(LifeKey("q", 1, 1)) is not None


def test_of_many_records_some_more_are_evicted_at_once() -> None:
    scene = Scene(rooms=RoomLimits(records=640))
    scene.join()
    for room in range(1, 642):
        scene.failed(room, 1)

    assert (scene.notifier.rooms.records, scene.notifier.rooms.tombstones) == (630, 11)


def test_the_oldest_open_room_makes_room() -> None:
    scene = Scene(rooms=RoomLimits(open_rooms=1))
    scene.join()
    scene.opened(1, 1)
    scene.opened(2, 1)

    assert scene.notifier.rooms.open_rooms == 1
    assert scene.notifier.stats.open_rooms_dropped == {"limit": 1}


def test_succeeded_rooms_are_remembered_within_a_bound() -> None:
    scene = Scene(rooms=RoomLimits(succeeded=1))
    scene.join()
    scene.succeeded(1, 1)
    scene.succeeded(2, 1)

    assert scene.notifier.rooms.find(LifeKey("p", 1, 1)) is None
    assert scene.notifier.rooms.find(LifeKey("p", 2, 1))


def test_one_life_takes_only_so_many_endpoints(scene: Scene) -> None:
    for port in range(1, 1025):
        scene.handshake(1, 1, DecodeEndpoint("10.0.0.1", port))
    scene.handshake(1, 1, E1)
    scene.aborted(1, 1, E1)

    assert scene.notifier.stats.handshakes_over_limit == 1


def test_what_a_full_outbox_drops_is_owed_again_by_the_replay() -> None:
    scene = Scene(outbox=OutboxLimits(notices_total=1))
    scene.join()
    scene.alive.clear()
    fact = scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.handshake(2, 1, E2)
    scene.failed(2, 1)

    assert scene.ended() == {"dropped": 1}
    assert scene.settled() == []
    scene.tell(fact)

    assert scene.notifier.outbox.find(key(1, 1, E1))


def test_a_life_that_came_back_owes_nobody_twice() -> None:
    """Its record and its tombstone were pushed out while its notice was still owed."""
    scene = Scene(rooms=RoomLimits(records=1, tombstones=1))
    scene.join()
    scene.alive.clear()
    said: list[Fact] = [scene.handshake(1, 1, E1), scene.failed(1, 1)]
    for room in (2, 3, 4):
        scene.failed(room, 1)
    for fact in said:
        scene.tell(fact)

    assert len(scene.notifier.outbox) == 1


def test_an_unknown_life_ends_though_it_pushes_out_the_only_other_one_of_its_room() -> None:
    scene = Scene(rooms=RoomLimits(open_rooms=1))
    scene.join()
    scene.opened(1, 1)
    scene.failed(1, 2)
    scene.handshake(1, 2, E1)

    assert scene.told() == [(E1, 1)]


def test_a_life_that_expires_takes_no_newer_one_of_its_room_along() -> None:
    scene = Scene()
    scene.join()
    scene.opened(1, 1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.advance(TTL_S + 1.0)

    assert [room.key.life for room in scene.notifier.lives_of(1)] == [2]
