"""Another rank of the engine is dead: this one ends what it has, without its scheduler, each request once drained."""

from pathlib import Path

from sidecar.model import SiblingDied
from tests.sglang_hooks.doubles import ScriptedSidecar
from tests.sglang_hooks.test_emitter import wait_until
from tests.sglang_hooks.test_rank import D1, D2, ROOM, MakeRank, failures, listen


def test_what_is_drained_is_told_at_once_and_the_rest_when_its_worker_is_through(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    for room in (ROOM, ROOM + 1):
        rank.open(room)
        rank.meet(room, D1, "s1")
    writing = rank.chunk_put(ROOM + 1)
    assert writing is not None

    rank.sibling_died()
    assert [end.room for end in failures(told)] == [ROOM]

    rank.chunk_finished(writing)
    assert [end.room for end in failures(told)] == [ROOM, ROOM + 1]
    assert {end.cause for end in failures(told)} == {"another prefill rank died"}


def test_decode_that_came_early_is_told_too(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    rank.meet(ROOM, D1, "s1")

    rank.sibling_died()

    assert [(end.room, end.drained) for end in failures(told)] == [(ROOM, True)]
    assert rank.meet(ROOM, D2, "s2"), "the room has ended: stock must not see it"


def test_a_success_stays_one_and_an_end_under_way_keeps_its_cause(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    done, ending = rank.open(ROOM), rank.open(ROOM + 1)
    rank.succeeded(done)
    rank.begin_end(ending, "Aborted")

    rank.sibling_died()

    assert [(end.room, end.cause) for end in failures(told)] == [(ROOM + 1, "Aborted")]


def test_the_sidecars_word_is_heard_on_the_stream(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        rank.open(ROOM)
        sidecar.reply(SiblingDied())

        wait_until(lambda: rank.counts.deaths_of_siblings == 1, "never heard")
        assert [end.room for end in failures(sidecar.hear(2))] == [ROOM]
