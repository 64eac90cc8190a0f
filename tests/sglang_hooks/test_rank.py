"""Rank: what the sidecar is told, and when, for each way a life can go."""

from collections.abc import Callable

import pytest

from sglang_hooks.rank import Rank
from sidecar.model import (
    DecodeAborted,
    DecodeEndpoint,
    DecodeHandshake,
    Fact,
    RoomConcluded,
    RoomOpened,
    Settled,
    TerminalStatus,
)
from tests.sglang_hooks.conftest import Clock

D1 = DecodeEndpoint("127.0.0.1", 7001)
D2 = DecodeEndpoint("127.0.0.1", 7002)
ROOM = 42

MakeRank = Callable[..., Rank]


def listen(rank: Rank) -> list[Fact]:
    """Takes the place of the stream: facts as they are posted."""
    told: list[Fact] = []
    rank.emitter.post = told.append  # type: ignore[method-assign]
    return told


def failures(told: list[Fact]) -> list[RoomConcluded]:
    return [fact for fact in told if isinstance(fact, RoomConcluded) and fact.status is TerminalStatus.FAILED]


def test_an_end_with_nothing_sent_is_told_at_once(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")

    rank.release(life, "Aborted")

    assert [RoomOpened(1, ROOM, 1), DecodeHandshake(2, ROOM, 1, D1, "s1")] == told[:2]
    assert [RoomConcluded(3, ROOM, 1, TerminalStatus.FAILED, "Aborted", True, 100.0, 100.0)] == told[2:]


def test_an_end_waits_for_the_last_chunk(make_rank: MakeRank) -> None:
    """Never too early: decode frees its pages on the first word (promise 2)."""
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    chunk = rank.chunk_put(ROOM)
    assert chunk is life

    rank.release(life, "Aborted")
    assert failures(told) == []

    rank.chunk_finished(life)
    assert len(failures(told)) == 1


@pytest.mark.parametrize("is_last_chunk", [False, True])
def test_the_end_is_on_its_way_before_the_books_are_kept(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, is_last_chunk: bool
) -> None:
    """Decode waits for it, nobody for the books."""
    rank = make_rank()
    told, done = listen(rank), []
    life = rank.open(ROOM)
    if is_last_chunk:
        rank.chunk_put(ROOM)
        rank.release(life, "Aborted")
    monkeypatch.setattr(rank.emitter, "flush", lambda **_: done.append(f"flush {len(failures(told))}"))
    monkeypatch.setattr(rank.table, "close", lambda *_, **__: done.append("close"))
    if is_last_chunk:
        rank.chunk_finished(life)
    else:
        rank.release(life, "Aborted")

    assert done[:2] == ["flush 1", "close"]


def test_the_books_are_kept_though_the_fact_cannot_be_sent(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = make_rank()
    life = rank.open(ROOM)

    def break_down() -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(rank.emitter, "flush", break_down)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        rank.release(life, "Aborted")

    assert rank.table.find_open(ROOM) is None
    assert rank.table.find(ROOM, life.number) is life
    assert not rank.lock.locked()


def test_the_end_is_told_once(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)

    rank.release(life, "Aborted")
    rank.release(life, "again")

    assert [fact.cause for fact in failures(told)] == ["Aborted"]


def test_the_first_cause_stands(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.name_cause(life, "input too long")

    assert rank.begin_end(life, "Aborted by AbortReq.")
    assert not rank.begin_end(life, "the transfer failed")
    rank.release(life, "cleared")

    assert [fact.cause for fact in failures(told)] == ["input too long"]


def test_success_is_told_before_it_is_pushed_and_never_contradicted(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.chunk_put(ROOM)

    rank.begin_end(life, "Aborted by AbortReq.")  # the abort comes while the last chunk is being written
    rank.succeeded(life)
    rank.chunk_finished(life)
    rank.release(life, "")

    assert [fact.status for fact in told if isinstance(fact, RoomConcluded)] == [TerminalStatus.SUCCESS]
    assert not rank.is_late(ROOM)


def test_a_handshake_after_the_end_is_kept_from_stock_and_told(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.release(rank.open(ROOM), "Aborted")
    told.clear()

    assert rank.meet(ROOM, D1, "s1")

    assert [RoomConcluded, DecodeHandshake] == [type(fact) for fact in told]
    assert rank.counts.late_handshakes == 1


def test_a_handshake_while_the_life_is_ending_is_told_with_its_end(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.chunk_put(ROOM)
    rank.begin_end(life, "Aborted")

    assert rank.meet(ROOM, D1, "s1")
    rank.release(life, "Aborted")
    rank.chunk_finished(life)

    assert [DecodeHandshake, RoomConcluded] == [type(fact) for fact in told[1:]]


def test_decodes_abort_for_its_own_life_reaches_stock_and_settles(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")

    assert not rank.decode_aborted(ROOM, D1)

    assert DecodeAborted(3, ROOM, life.number, D1) == told[-1]
    assert life.owed == []


def test_decodes_abort_for_an_ended_room_settles_that_life(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.release(rank.open(ROOM), "Aborted")
    rank.meet(ROOM, D1, "s1")

    assert not rank.decode_aborted(ROOM, D1)
    assert told[-1] == DecodeAborted(4, ROOM, 1, D1)


def test_decodes_abort_for_the_old_life_must_not_fail_the_new_one(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.release(rank.open(ROOM), "Aborted")
    rank.meet(ROOM, D1, "s1")
    rank.open(ROOM)
    rank.meet(ROOM, D2, "s2")

    assert rank.decode_aborted(ROOM, D1)

    last = told[-1]
    assert isinstance(last, DecodeAborted)
    assert (last.life, last.endpoint) == (1, D1)


def test_a_shared_endpoint_cannot_be_told_apart_and_is_counted(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.release(rank.open(ROOM), "Aborted")
    rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")

    assert not rank.decode_aborted(ROOM, D1)
    assert rank.counts.shared_endpoint_aborts == 1


def test_a_room_that_does_not_drain_is_given_up_and_says_so(make_rank: MakeRank, clock: Clock) -> None:
    rank = make_rank()
    told = listen(rank)
    life = rank.open(ROOM)
    rank.chunk_put(ROOM)
    rank.begin_end(life, "Aborted")
    assert not rank.is_quiet(life)

    clock.now_s += 30.0
    assert rank.is_quiet(life)
    rank.release(life, "")

    assert [fact.drained for fact in failures(told)] == [False]
    assert rank.counts.undrained_lives == 1


def test_tables_are_purged_only_for_a_room_that_has_ended(make_rank: MakeRank) -> None:
    rank = make_rank()
    purges: list[int] = []

    def purge() -> bool:
        purges.append(ROOM)
        return True

    rank.purge_if_ended(ROOM, purge)
    life = rank.open(ROOM)
    rank.purge_if_ended(ROOM, purge)
    assert purges == []

    rank.release(life, "Aborted")
    assert rank.purge_if_ended(ROOM, purge)
    assert purges == [ROOM]


def test_a_successor_is_told_all_that_lives(make_rank: MakeRank) -> None:
    rank = make_rank()
    ended = rank.open(1)
    rank.meet(1, D1, "s1")
    rank.release(ended, "Aborted")
    rank.open(2)
    rank.meet(2, D2, "s2")
    done = rank.open(3)
    rank.succeeded(done)

    told = list(rank.replay())

    assert [RoomOpened, DecodeHandshake, RoomConcluded, RoomOpened, DecodeHandshake] == [type(fact) for fact in told]
    assert [fact.room for fact in told if not isinstance(fact, DecodeAborted)] == [1, 1, 1, 2, 2]


def test_what_is_settled_is_not_told_again(make_rank: MakeRank) -> None:
    rank = make_rank()
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s1")
    rank.meet(ROOM, D2, "s2")
    rank.release(life, "Aborted")

    rank.settled(Settled(ROOM, life.number, D1))
    assert [fact.endpoint for fact in rank.replay() if isinstance(fact, DecodeHandshake)] == [D2]

    rank.settled(Settled(ROOM, life.number, D2))
    assert list(rank.replay()) == []


def test_a_replay_keeps_the_numbers_of_the_first_time(make_rank: MakeRank) -> None:
    """To a sidecar that knows the life, a handshake with a higher number is a new request of decode's and is told
    again."""
    rank = make_rank()
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")
    life = rank.open(ROOM)
    rank.meet(ROOM, D2, "s2")
    rank.release(life, "Aborted")
    rank.meet(ROOM, D1, "s1")

    replayed = list(rank.replay())

    last_told = {(type(fact), getattr(fact, "endpoint", None)): fact for fact in told}
    assert {(type(fact), getattr(fact, "endpoint", None)): fact for fact in replayed} == last_told


def test_news_has_a_higher_number_than_all_before(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    for room in (1, 2):
        life = rank.open(room)
        rank.meet(room, D1, "s1")
        rank.release(life, "Aborted")
    numbers = [fact.seq for fact in told]

    assert numbers == sorted(set(numbers))
