"""Ends without a sender, and handshakes for ended rooms: what a rank does, step by step. The orders of these steps are
in tests/orders.
"""

from collections.abc import Callable

import pytest

from sglang_hooks.doubts import HELD_LIMIT, Doubts, Held
from sglang_hooks.rank import Rank
from sglang_hooks.senderless import DOUBT_LIMIT_S
from sidecar.model import (
    DecodeAborted,
    DecodeHandshake,
    Fact,
    RoomConcluded,
    RoomEnded,
    RoomOpened,
    RoomQueried,
    RoomQuery,
    TerminalStatus,
    TokenizerJoined,
)
from tests.sglang_hooks.conftest import Clock
from tests.sglang_hooks.test_rank import D1, D2, ROOM, MakeRank, failures, listen

FRAMES = [b"42", b"the", b"message"]


class Tables:
    """In the place of the engine's own."""

    def __init__(self) -> None:
        self.purged: list[int] = []
        self.taken_out: list[tuple[int, list[str]]] = []

    def purge(self, room: int) -> bool:
        self.purged.append(room)
        return True

    def take_out(self, room: int, sessions: object) -> None:
        self.taken_out.append((room, list(sessions)))  # type: ignore[call-overload]


@pytest.fixture
def rank(make_rank: MakeRank) -> Rank:
    rank = make_rank()
    rank.senderless.tables = Tables()
    return rank


def tables(rank: Rank) -> Tables:
    assert isinstance(rank.senderless.tables, Tables)
    return rank.senderless.tables


def refused(at_s: float, *, accepted_at_s: float = 0.0, as_of_s: float | None = None) -> RoomEnded:
    return RoomEnded(ROOM, at_s if as_of_s is None else as_of_s, accepted_at_s, at_s, "too long", 400)


def in_use(accepted_at_s: float, as_of_s: float) -> RoomEnded:
    return RoomEnded(ROOM, as_of_s, accepted_at_s, 0.0, "", 0)


def nothing(as_of_s: float) -> RoomEnded:
    return RoomEnded(ROOM, as_of_s, 0.0, 0.0, "", 0)


def questions(told: list[Fact]) -> int:
    return sum(isinstance(fact, RoomQueried) for fact in told)


def ended_here(rank: Rank) -> None:
    rank.release(rank.open(ROOM), "Aborted")


# -- refused by the rank's own scheduler


def test_whoever_shook_hands_before_is_told_at_once(rank: Rank) -> None:
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    rank.refuse(ROOM, "too many tokens", 400)

    assert told == [
        DecodeHandshake(1, ROOM, 1, D1, "s1"),
        RoomConcluded(2, ROOM, 1, TerminalStatus.FAILED, "too many tokens", True, 100.0, 100.0, 400),
    ]
    assert rank.table.find(ROOM, 1).http_status == 400  # type: ignore[union-attr]


def test_whoever_shakes_hands_after_is_late(rank: Rank) -> None:
    told = listen(rank)
    rank.refuse(ROOM, "too many tokens", 400)

    assert rank.meet(ROOM, D1, "s1"), "stock must not see it"

    assert [type(fact) for fact in told] == [RoomConcluded, RoomConcluded, DecodeHandshake]
    assert {fact.life for fact in told if not isinstance(fact, RoomQueried)} == {1}  # type: ignore[union-attr]


def test_a_request_that_has_a_sender_has_nothing_to_fear(rank: Rank) -> None:
    told = listen(rank)
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")

    rank.refuse(ROOM, "a twin of it was refused")
    rank.heard(refused(200.0))

    assert failures(told) == []
    assert not life.ending
    assert rank.counts.refusals_of_others == 2


def test_what_stock_has_gathered_is_taken_out(rank: Rank) -> None:
    rank.meet(ROOM, D1, "s1")
    rank.senderless.put_down()

    rank.refuse(ROOM, "too many tokens")

    assert tables(rank).purged == [ROOM]


def test_a_message_in_stocks_hand_is_waited_for(rank: Rank) -> None:
    """Stock looks the room up twice while it handles a handshake: taken out between, its thread would end."""
    rank.meet(ROOM, D1, "s1")  # stock has it in hand now

    rank.refuse(ROOM, "too many tokens")
    assert tables(rank).purged == []
    assert not rank.purge_if_ended(ROOM, lambda: True), "nor may anybody else"

    rank.senderless.put_down()
    assert rank.purge_if_ended(ROOM, lambda: True)


# -- refused at the door


def test_decode_that_came_before_the_refusal_is_told(rank: Rank) -> None:
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    rank.heard(refused(101.0))

    assert [(end.cause, end.drained) for end in failures(told)] == [("too long", True)]
    assert questions(told) == 0


def test_decode_that_came_since_is_asked_about_first(rank: Rank, clock: Clock) -> None:
    """A new request with that room may have been accepted meanwhile."""
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    rank.heard(refused(99.0))
    assert failures(told) == []
    assert questions(told) == 1

    rank.heard(refused(200.0))
    assert [end.cause for end in failures(told)] == ["too long"]


def test_those_of_a_newer_request_stay_with_it(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")
    clock.now_s = 110.0
    rank.meet(ROOM, D2, "s2")
    rank.senderless.put_down()

    rank.heard(refused(105.0, accepted_at_s=105.0, as_of_s=120.0))

    assert [(end.life, end.cause) for end in failures(told)] == [(1, "too long")]
    assert tables(rank).taken_out == [(ROOM, ["s1"])]
    life = rank.open(ROOM)
    assert (life.number, set(life.endpoints), life.previous) == (2, {D2}, 1)
    assert not rank.is_late(ROOM)


def test_those_who_stay_are_told_of_under_their_new_number_first(rank: Rank, clock: Clock) -> None:
    """A sidecar that knows them under the old one would tell them of its end."""
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")
    clock.now_s = 110.0
    rank.meet(ROOM, D2, "s2")
    told.clear()

    rank.heard(refused(105.0, accepted_at_s=105.0, as_of_s=120.0))

    assert told[0] == DecodeHandshake(3, ROOM, 2, D2, "s2")
    assert isinstance(told[1], RoomConcluded)


def test_what_is_split_while_stock_has_the_room_in_hand_is_taken_out_after(rank: Rank, clock: Clock) -> None:
    rank.meet(ROOM, D1, "s1")
    clock.now_s = 110.0
    rank.meet(ROOM, D2, "s2")

    rank.heard(refused(105.0, accepted_at_s=105.0, as_of_s=120.0))
    assert tables(rank).taken_out == []

    rank.senderless.put_down()
    assert tables(rank).taken_out == [(ROOM, ["s1"])]


def test_unknown_is_not_ended(rank: Rank) -> None:
    """A handshake that came first is early, whatever its age, until somebody says that its room has ended."""
    told = listen(rank)
    rank.heard(TokenizerJoined())
    assert not rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(nothing(500.0))
    rank.heard(RoomQuery(ROOM))

    assert failures(told) == []
    assert questions(told) == 0


def test_a_refusal_of_which_nobody_waits_is_remembered(rank: Rank) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    rank.heard(refused(99.0))
    rank.heard(refused(99.0))  # told again on a new stream

    assert rank.meet(ROOM, D1, "s1", FRAMES), "held"
    assert len(failures(told)) == 1
    assert questions(told) == 1

    rank.heard(refused(120.0))
    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D1]


# -- a handshake for a room that has ended


def test_without_a_tokenizer_process_to_ask_it_is_late(rank: Rank) -> None:
    told = listen(rank)
    ended_here(rank)

    assert rank.meet(ROOM, D1, "s1", FRAMES)

    assert isinstance(told[-1], DecodeHandshake)


def test_with_one_it_is_held_until_that_process_has_said(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    told.clear()

    assert rank.meet(ROOM, D1, "s1", FRAMES)
    assert told == [RoomQueried(3, ROOM)]

    rank.heard(nothing(101.0))
    assert isinstance(told[-1], DecodeHandshake)
    assert told[-1].life == 1
    assert rank.senderless.take_released() is None


def test_a_new_request_gets_the_handshakes_that_came_after_it_was_accepted(rank: Rank, clock: Clock) -> None:
    rung: list[bool] = []
    rank.senderless.on_released = lambda: rung.append(True)
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", [b"before"])
    clock.now_s = 110.0
    rank.meet(ROOM, D2, "s2", FRAMES)
    told.clear()

    rank.heard(in_use(accepted_at_s=105.0, as_of_s=120.0))

    assert [(fact.endpoint, fact.life) for fact in told if isinstance(fact, DecodeHandshake)] == [(D1, 1), (D2, 2)]
    assert rung
    assert rank.senderless.take_released() == FRAMES
    assert rank.senderless.in_hand == ROOM
    assert rank.open(ROOM).number == 2


def test_the_ended_request_itself_is_no_newer_one(rank: Rank) -> None:
    """The tokenizer process has not heard yet that the rank has ended it."""
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(in_use(accepted_at_s=99.0, as_of_s=120.0))

    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D1]


def test_a_sender_that_came_meanwhile_has_the_handshakes_since_the_acceptance(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", [b"before"])
    clock.now_s = 110.0
    rank.meet(ROOM, D2, "s2", FRAMES)
    life = rank.open(ROOM)

    rank.heard(in_use(accepted_at_s=105.0, as_of_s=120.0))

    assert [(fact.endpoint, fact.life) for fact in told if isinstance(fact, DecodeHandshake)] == [(D1, 1), (D2, 2)]
    assert set(life.endpoints) == {D2}
    assert rank.senderless.take_released() == FRAMES


def test_a_later_handshake_than_the_answer_is_asked_about_again(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    clock.now_s = 110.0
    rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(nothing(105.0))

    assert questions(told) == 2
    assert ROOM in rank.senderless.doubts


def test_an_old_refusal_does_not_end_a_room_that_was_served_since(rank: Rank) -> None:
    """It was on its way for long; the tokenizer process knows better."""
    told = listen(rank)
    rank.heard(TokenizerJoined())
    rank.heard(refused(50.0))
    assert rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(nothing(120.0))

    assert rank.senderless.take_released() == FRAMES
    assert not rank.is_late(ROOM)
    assert len(failures(told)) == 1, "that of the refusal itself, with nobody in it"


def test_a_dummy_is_held_and_released_with_the_others(rank: Rank, clock: Clock) -> None:
    rank.heard(TokenizerJoined())
    ended_here(rank)
    assert rank.meet_dummy(ROOM, [b"late dummy"])
    clock.now_s = 110.0
    assert rank.meet_dummy(ROOM, FRAMES)

    rank.heard(in_use(accepted_at_s=105.0, as_of_s=120.0))

    assert rank.senderless.take_released() == FRAMES
    assert rank.senderless.take_released() is None


def test_what_is_released_late_is_dropped(rank: Rank) -> None:
    """The new request has been refused before the engine's thread came for the message."""
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)
    rank.heard(in_use(accepted_at_s=100.0, as_of_s=120.0))  # as old as the life itself
    rank.senderless.doubts.hold(Held(ROOM, D2, "s2", FRAMES, 130.0))
    rank.heard(in_use(accepted_at_s=125.0, as_of_s=140.0))

    rank.refuse(ROOM, "too many tokens")

    assert rank.senderless.take_released() is None


def test_decode_that_gives_up_is_held_no_longer(rank: Rank) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)
    rank.meet(ROOM, D2, "s2", FRAMES)

    rank.decode_aborted(ROOM, D1)
    rank.heard(nothing(200.0))

    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D2]
    assert [fact.endpoint for fact in told if isinstance(fact, DecodeAborted)] == [D1]


def test_decodes_ack_of_an_older_end_finds_it_while_the_next_request_is_on_its_way(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)
    clock.now_s = 110.0
    rank.heard(in_use(accepted_at_s=99.5, as_of_s=105.0))
    rank.meet(ROOM, D2, "s2", FRAMES)
    rank.heard(in_use(accepted_at_s=106.0, as_of_s=120.0))

    rank.decode_acknowledged(ROOM, D1)

    assert told[-1].life == 1  # type: ignore[union-attr]


# -- bounds


def test_a_handshake_that_is_not_judged_in_time_counts_as_late(rank: Rank, clock: Clock) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)
    rank.senderless.judge_overdue()
    assert ROOM in rank.senderless.doubts

    clock.now_s += DOUBT_LIMIT_S + 0.1
    rank.senderless.judge_overdue()

    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D1]
    assert rank.counts.doubts_unanswered == 1


def test_a_new_tokenizer_stream_is_asked_again(rank: Rank) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(TokenizerJoined())

    assert questions(told) == 2


def test_with_a_dead_sibling_nothing_is_asked_any_more(rank: Rank) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)

    rank.sibling_died()

    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D1]
    assert not len(rank.senderless.doubts)


def test_with_no_place_for_doubts_a_handshake_counts_as_late(rank: Rank) -> None:
    rank.senderless.doubts = Doubts(room_limit=0)
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)

    assert rank.meet(ROOM, D1, "s1", FRAMES)

    assert isinstance(told[-1], DecodeHandshake)
    assert rank.counts.doubts_over_limit == 1


def test_so_many_doubts_of_one_room_are_held() -> None:
    doubts = Doubts()
    held = [doubts.hold(Held(ROOM, D1, "s", FRAMES, 1.0)) for _ in range(HELD_LIMIT + 1)]

    assert held == [True] * HELD_LIMIT + [False]


def test_there_is_no_goodbye_over_a_doubt(rank: Rank) -> None:
    told = listen(rank)
    rank.heard(TokenizerJoined())
    ended_here(rank)
    rank.meet(ROOM, D1, "s1", FRAMES)
    stop: Callable[..., None] = lambda **_: None  # noqa: E731
    rank.emitter.stop = stop  # type: ignore[method-assign]

    rank.say_goodbye(limit_s=0.0)

    assert isinstance(told[-1], RoomQueried)


def test_a_new_sidecar_is_told_of_the_refusal_with_its_handshakes(rank: Rank) -> None:
    listen(rank)
    rank.meet(ROOM, D1, "s1")
    rank.refuse(ROOM, "too many tokens")

    replayed = list(rank.replay())

    assert [type(fact) for fact in replayed] == [RoomOpened, DecodeHandshake, RoomConcluded]


def test_a_refusal_while_the_room_still_drains_is_not_forgotten(rank: Rank, clock: Clock) -> None:
    """The refused request's decode comes after the drain, and the tokenizer process still has that request."""
    told = listen(rank)
    rank.heard(TokenizerJoined())
    life = rank.open(ROOM)
    chunk = rank.chunk_put(ROOM)
    assert chunk is life
    rank.release(life, "Aborted")
    clock.now_s = 110.0
    rank.refuse(ROOM, "over capacity")
    rank.chunk_finished(life)
    clock.now_s = 120.0
    assert rank.meet(ROOM, D1, "s1", FRAMES)

    rank.heard(in_use(accepted_at_s=105.0, as_of_s=130.0))

    assert [fact.endpoint for fact in told if isinstance(fact, DecodeHandshake)] == [D1]


def test_a_refusal_while_the_rooms_last_request_is_being_cleared_stands(rank: Rank, clock: Clock) -> None:
    """That one has succeeded here, and other ranks are not through yet."""
    told = listen(rank)
    served = rank.open(ROOM)
    rank.succeeded(served)
    rank.meet(ROOM, D1, "s1")

    rank.refuse(ROOM, "over capacity")
    rank.release(served, "")

    assert [end.cause for end in failures(told)] == ["over capacity"]
    assert rank.meet(ROOM, D2, "s2"), "late"
