"""LifeTable: which life a message about a room belongs to."""

import pytest

from sglang_hooks.lives import EARLY_LIMIT, EVICTED_CAUSE, Joined, Life, LifeTable
from sidecar.model import DecodeEndpoint

D1 = DecodeEndpoint("127.0.0.1", 7001)
D2 = DecodeEndpoint("127.0.0.1", 7002)


def ended(table: LifeTable, room: int, *, now: float = 0.0) -> Life:
    life = table.open(room)
    life.concluded_at_s = now
    table.close(life, now=now)
    return life


def meet(table: LifeTable, room: int, endpoint: DecodeEndpoint, *, seq: int = 1, now: float = 1.0) -> Life:
    life = table.meet_early(room, now=now)
    life.join(endpoint, "s", seq=seq, at_s=now)
    return life


@pytest.fixture
def table() -> LifeTable:
    return LifeTable(ttl_s=300.0, record_limit=3, tombstone_limit=2)


def test_numbers_go_up_across_rooms(table: LifeTable) -> None:
    assert [table.open(room).number for room in (7, 8, 7)] == [1, 2, 3]


def test_a_room_nobody_has_ended_is_early(table: LifeTable) -> None:
    assert not table.has_ended(7, now=0.0)
    assert table.last_end(7, now=0.0) is None


def test_an_early_endpoint_joins_the_life_that_opens(table: LifeTable) -> None:
    early = meet(table, 7, D1)

    life = table.open(7)

    assert early is life
    assert life.endpoints == {D1: Joined("s", 1, at_s=1.0)}
    assert life.owed == [D1]
    assert table.open(7).endpoints == {}


def test_an_early_endpoint_that_gave_up_does_not_join(table: LifeTable) -> None:
    early = meet(table, 7, D1)
    meet(table, 7, D2, seq=2)

    assert table.leave_early(7, D1) is early
    assert table.leave_early(7, D1) is None
    assert table.open(7).endpoints == {D2: Joined("s", 2, at_s=1.0)}


def test_an_early_life_has_its_number_before_lives_that_open_later(table: LifeTable) -> None:
    """A sidecar that is told of the handshake at once must be told of the same life when it opens."""
    early = meet(table, 7, D1)
    other = table.open(8)

    assert (early.number, other.number, table.open(7).number, table.open(7).number) == (1, 2, 1, 3)


def test_an_early_life_that_everybody_left_is_gone(table: LifeTable) -> None:
    meet(table, 7, D1)
    table.leave_early(7, D1)

    assert table.is_quiet(now=1.0)
    assert table.open(7).number == 2


def test_decode_no_longer_waits_in_an_early_life_past_the_ttl(table: LifeTable) -> None:
    """A sidecar need not know of it. Should its request come after all, it is still known here."""
    early = meet(table, 7, D1, now=1.0)

    assert table.early_lives(now=300.9) == [early]
    assert table.early_lives(now=301.0) == []
    assert table.open(7) is early


def test_an_early_life_is_not_open(table: LifeTable) -> None:
    meet(table, 7, D1)

    assert table.find_open(7) is None
    assert not table.has_ended(7, now=1.0)
    assert not table.is_quiet(now=1.0)
    assert table.is_quiet(now=301.0)


def test_early_rooms_are_bounded_and_counted(table: LifeTable) -> None:
    for room in range(EARLY_LIMIT + 2):
        meet(table, room, D1)

    assert table.losses.early_evicted == 2
    assert table.open(0).endpoints == {}


def test_a_failed_room_has_ended_until_it_opens_again(table: LifeTable) -> None:
    first = ended(table, 7)
    assert table.has_ended(7, now=1.0)
    assert first is table.last_end(7, now=1.0)

    second = table.open(7)

    assert first.number == second.previous
    assert not table.has_ended(7, now=1.0)


def test_a_room_that_succeeded_has_not_ended(table: LifeTable) -> None:
    """Its next handshake is early for the next life, not late for this one."""
    life = table.open(7)
    life.succeeded = True
    table.close(life, now=0.0)

    assert not table.has_ended(7, now=0.0)


def test_success_of_the_second_life_forgets_the_failure_of_the_first(table: LifeTable) -> None:
    ended(table, 7)
    second = table.open(7)
    second.succeeded = True
    table.close(second, now=1.0)

    assert not table.has_ended(7, now=1.0)


def test_an_old_twin_that_ends_does_not_disturb_the_open_life(table: LifeTable) -> None:
    old, new = table.open(7), table.open(7)

    table.close(old, now=0.0)

    assert new is table.find_open(7)
    assert not table.has_ended(7, now=0.0)
    assert old is table.find(7, old.number)


def test_records_expire(table: LifeTable) -> None:
    ended(table, 7, now=0.0)

    assert table.has_ended(7, now=299.0)
    assert not table.has_ended(7, now=300.0)
    assert table.lives() == []


def test_an_evicted_record_is_answered_from_its_tombstone(table: LifeTable) -> None:
    first = ended(table, 1)
    for room in (2, 3, 4):
        ended(table, room)
    assert table.losses.records_evicted == 1
    assert table.find(1, first.number) is None

    revived = table.last_end(1, now=5.0)

    assert revived is not None
    assert (first.number, EVICTED_CAUSE, True) == (revived.number, revived.cause, revived.concluded)


def test_tombstones_are_bounded_and_counted(table: LifeTable) -> None:
    for room in range(1, 8):
        ended(table, room)

    assert table.losses.tombstones_evicted == 2
    assert not table.has_ended(1, now=0.0)
    assert table.has_ended(3, now=0.0)
    assert table.counts() == {"open": 0, "early": 0, "records": 3, "tombstones": 2}


def test_tombstones_expire_with_their_record(table: LifeTable) -> None:
    for room in (1, 2, 3, 4):
        ended(table, room, now=float(room))

    assert table.has_ended(1, now=300.5)
    assert not table.has_ended(1, now=301.0)


def test_a_room_that_opens_again_leaves_no_tombstone(table: LifeTable) -> None:
    """The evicted record of the old life must not make the new life's room look ended."""
    ended(table, 1)
    table.open(1)
    for room in (2, 3, 4, 5):
        ended(table, room)

    assert not table.has_ended(1, now=0.0)


def test_a_room_that_was_served_since_leaves_no_tombstone(table: LifeTable) -> None:
    ended(table, 1)
    served = table.open(1)
    served.succeeded = True
    table.close(served, now=0.0)
    for room in (2, 3, 4, 5):
        ended(table, room)

    assert not table.has_ended(1, now=0.0)


def test_a_room_whose_next_request_was_accepted_leaves_no_tombstone(table: LifeTable) -> None:
    first = ended(table, 1)
    table.accept(1, now=0.0)
    for room in (2, 3, 4, 5):
        ended(table, room)

    assert not table.has_ended(1, now=0.0)
    assert table.open(1).previous == first.number


def test_lives_come_oldest_first(table: LifeTable) -> None:
    table.open(1)
    ended(table, 2)
    table.open(3)

    assert [life.number for life in table.lives()] == [1, 2, 3]


def test_a_life_is_drained_when_all_that_was_put_is_finished() -> None:
    life = Life(room=7, number=1)
    assert life.is_drained

    life.put = 2
    life.finished = 1
    assert not life.is_drained

    life.finished = 2
    assert life.is_drained
