"""Rank and RankTable: what only one rank can tell apart."""

from sidecar.core.ranks import REGISTRATION_LIMIT, Rank, RankTable, Registration
from sidecar.model import DecodeEndpoint, DecodeRegistered, Goodbye
from tests.core.scene import E1, hello


def test_registrations_are_bounded_and_the_oldest_goes() -> None:
    rank = Rank(hello(), 1)
    for number in range(REGISTRATION_LIMIT + 1):
        rank.registered(DecodeRegistered(5, DecodeEndpoint("10.0.0.1", number), "new", 20))

    assert rank.registration_of(DecodeEndpoint("10.0.0.1", 0)) is None
    assert rank.registration_of(DecodeEndpoint("10.0.0.1", 1)) is not None


def test_a_connected_rank_is_never_forgotten() -> None:
    table = RankTable(limit=1)
    table.join(hello("p"), 1)
    table.join(hello("q"), 2)

    assert table.forget_surplus() == []
    table.leave(1)

    assert [rank.hello.process for rank in table.forget_surplus()] == ["p"]


def test_the_highest_number_of_a_batch_is_acknowledged() -> None:
    rank = Rank(hello(), 1)
    facts = [Goodbye(3), Goodbye(2)]

    assert rank.accept(facts) == {id(facts[1])}
    assert rank.take_unacknowledged() == 3


def test_a_decode_half_stays_for_its_session_however_often_that_registers() -> None:
    """Its acknowledgements are registrations said again, and announce nothing."""
    rank = Rank(hello(), 1)
    rank.registered(DecodeRegistered(1, E1, "s", 20, "0.5.18"))
    rank.registered(DecodeRegistered(2, E1, "s", 20))

    assert rank.registration_of(E1) == Registration(2, "s", 20, "0.5.18")


def test_a_new_session_is_another_decode() -> None:
    rank = Rank(hello(), 1)
    rank.registered(DecodeRegistered(1, E1, "s", 20, "0.5.18"))
    rank.registered(DecodeRegistered(2, E1, "t", 18))

    assert rank.registration_of(E1) == Registration(2, "t", 18, "")


def test_a_registration_replayed_says_nothing_new() -> None:
    rank = Rank(hello(), 1)
    rank.registered(DecodeRegistered(2, E1, "t", 18))

    assert not rank.registered(DecodeRegistered(1, E1, "s", 20))
    assert rank.registration_of(E1) == Registration(2, "t", 18, "")
