"""Decode registers once; every sidecar must hear of it, or it sends decode less than that takes."""

from sglang_hooks.registrations import Registrations
from sidecar.model import DecodeEndpoint, DecodeHandshake, DecodeRegistered, RoomConcluded, RoomOpened
from tests.sglang_hooks.test_rank import MakeRank, listen

D1 = DecodeEndpoint("10.0.0.1", 7001)
D2 = DecodeEndpoint("10.0.0.2", 7001)


def test_a_successor_hears_of_registrations_before_anything_that_depends_on_them(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.registered(D1, "s1", 20, "0.5.21")
    life = rank.open(1)
    rank.meet(1, D1, "s1")
    rank.release(life, "Aborted")

    replayed = list(rank.replay())

    assert [type(fact) for fact in replayed] == [DecodeRegistered, RoomOpened, DecodeHandshake, RoomConcluded]
    assert replayed[0] == told[0] == DecodeRegistered(1, D1, "s1", 20, "0.5.21")


def test_the_last_one_of_an_endpoint_is_said(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.registered(D1, "s1", 20)
    rank.registered(D2, "s2", 18)
    rank.registered(D1, "s3", 19)

    assert list(rank.replay()) == [DecodeRegistered(2, D2, "s2", 18), DecodeRegistered(3, D1, "s3", 19)]


def test_they_are_bounded_and_what_went_is_counted() -> None:
    kept = Registrations(limit=2)
    for number in (1, 2, 3):
        kept.note(DecodeRegistered(number, DecodeEndpoint("10.0.0.1", number), "s", 20))

    assert [fact.seq for fact in kept] == [2, 3]
    assert kept.evicted == 1
