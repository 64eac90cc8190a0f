"""Rank, at the edges of a life: decode that came before the request, its acknowledgement, an orderly end."""

import pytest

from sglang_hooks.rank import EARLY_REPEAT_AFTER_S
from sidecar.model import DecodeAborted, DecodeAcknowledged, DecodeHandshake, Goodbye, RoomOpened
from tests.sglang_hooks.conftest import Clock
from tests.sglang_hooks.test_rank import D1, D2, ROOM, MakeRank, listen


def test_a_handshake_before_the_request_reaches_stock_and_is_told_at_once_and_once(make_rank: MakeRank) -> None:
    """Should this process die before it has the request, decode waits for it all the same."""
    rank = make_rank()
    told = listen(rank)

    assert not rank.meet(ROOM, D1, "s1")
    assert told == [DecodeHandshake(1, ROOM, 1, D1, "s1")]

    rank.open(ROOM)
    assert told[1:] == [RoomOpened(2, ROOM, 1)]


def test_a_request_that_comes_long_after_decode_is_told_in_full(make_rank: MakeRank, clock: Clock) -> None:
    """The sidecar may have forgotten it by then."""
    rank = make_rank()
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")
    clock.now_s += EARLY_REPEAT_AFTER_S
    rank.open(ROOM)

    assert told[1:] == [RoomOpened(2, ROOM, 1), told[0]]


def test_an_early_handshake_is_replayed_as_long_as_decode_may_wait(make_rank: MakeRank, clock: Clock) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    assert list(rank.replay()) == told
    clock.now_s += 300.0
    assert list(rank.replay()) == []


def test_decode_that_gave_up_early_is_told_as_such(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    assert not rank.decode_aborted(ROOM, D1)
    assert told[1:] == [DecodeAborted(2, ROOM, 1, D1)]
    assert not rank.decode_aborted(ROOM, D1)
    assert len(told) == 2


def test_decodes_ack_settles_the_rooms_last_end(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")
    rank.release(life, "Aborted")

    rank.decode_acknowledged(ROOM, D1)
    assert told[-1] == DecodeAcknowledged(4, ROOM, 1, D1)
    assert list(rank.replay()) == []


def test_decodes_ack_never_touches_an_open_life(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.decode_acknowledged(ROOM, D1)
    first = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")
    rank.decode_acknowledged(ROOM, D1)
    assert not any(isinstance(fact, DecodeAcknowledged) for fact in told)

    rank.release(first, "Aborted")
    second = rank.open(ROOM)
    rank.meet(ROOM, D1, "s2")
    rank.decode_acknowledged(ROOM, D1)
    assert told[-1] == DecodeAcknowledged(rank.last_seq, ROOM, first.number, D1)
    assert second.owed == [D1]


@pytest.mark.parametrize("early", [True, False])
def test_there_is_no_goodbye_while_a_request_is_here_or_waited_for(make_rank: MakeRank, early: bool) -> None:
    """The sidecar would forget its room, and nobody would tell decode."""
    rank = make_rank(started=True)
    told = listen(rank)
    if early:
        rank.meet(ROOM, D1, "s1")
    else:
        rank.open(ROOM)
    rank.say_goodbye(limit_s=10.0)

    assert not any(isinstance(fact, Goodbye) for fact in told)


def test_a_rank_with_nothing_open_says_goodbye_and_stops(make_rank: MakeRank) -> None:
    rank = make_rank(started=True)
    told = listen(rank)
    rank.release(rank.open(ROOM), "Aborted")
    rank.say_goodbye(limit_s=10.0)

    assert isinstance(told[-1], Goodbye)
    assert not rank.emitter._thread.is_alive()  # noqa: SLF001 - the claim itself


def test_a_handshake_for_the_rooms_next_life_is_early_once_the_last_one_succeeded(make_rank: MakeRank) -> None:
    """P's scheduler may poll its Success late; decode and client may be on the room's next use by then."""
    rank = make_rank()
    life = rank.open(ROOM)
    rank.succeeded(life)

    assert not rank.meet(ROOM, D2, "s2")

    rank.release(life, "")
    assert list(rank.open(ROOM).endpoints) == [D2]


def test_decodes_abort_before_the_request_leaves_nothing_behind(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.meet(ROOM, D1, "s1")

    assert not rank.decode_aborted(ROOM, D1)
    assert rank.open(ROOM).endpoints == {}
