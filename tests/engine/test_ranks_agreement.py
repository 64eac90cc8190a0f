"""Two prefill ranks that know different things about an ending request: they leave together, later, or not at all.

Prefill computes 4 tokens an iteration. With overlap a chunk is sent in the iteration after the one that computed it.
"""

import pytest

from tests.engine.ranks.scene import Raise, RankEndedError, Scene
from tests.engine.ranks.spec import PAGES, SLOTS

pytestmark = pytest.mark.engine

ROOM = 4714
FAILED = 0
SUCCESS = 4
ABORTED = ["FINISH_ABORT"]
FINISHED = ["FINISH_LENGTH"]
UNTIL_LAST_CHUNK = 8
UNTIL_MIDDLE = 12


def one_rank_still_writes(scene: Scene, tokens: int) -> None:
    """The first chunk is with decode at rank 0 and held at rank 1, and the abort is on its way."""
    scene.ranks[1].hold()
    scene.admit("a", ROOM, tokens)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks[0].settled()
    scene.ranks.abort("a")


@pytest.mark.parametrize(
    ("tokens", "overlap"),
    [
        pytest.param(UNTIL_LAST_CHUNK, True, id="last chunk"),
        pytest.param(UNTIL_MIDDLE, True, id="middle chunk"),
        pytest.param(UNTIL_MIDDLE, False, id="middle chunk without overlap"),
    ],
)
def test_the_drained_rank_waits_for_the_one_that_writes(raised: Raise, tokens: int, overlap: bool) -> None:
    """Between a chunk's send and the next result: both enter the inflight queue and leave it in one later round."""
    scene = raised(overlap=overlap)
    one_rank_still_writes(scene, tokens)

    scene.ranks.iterate(times=3)
    assert scene.inflight() == ["a"]
    assert (scene.told(ROOM), scene.answers("a")) == ([0, 0], [])

    scene.ranks[1].let_go()
    scene.ranks[1].settled()
    scene.ranks.iterate()
    assert scene.inflight() == []
    assert scene.told(ROOM) == [1, 1]
    assert scene.drained(ROOM) == [True, True]
    assert scene.answers("a") == ABORTED
    scene.ranks.iterate()
    assert scene.is_clean(ROOM)


@pytest.mark.parametrize("fault", ["is done while it writes", "never parks"])
def test_without_the_wait_a_rank_is_told_of_while_it_writes(raised: Raise, fault: str) -> None:
    scene = raised(fault=fault)
    one_rank_still_writes(scene, UNTIL_MIDDLE)

    scene.ranks.iterate(times=2)

    assert scene.inflight() == []
    assert scene.ranks[1].transfers() == (1, 0)
    assert scene.ranks.each("free") == [(PAGES, SLOTS)] * 2 or fault == "is done while it writes"
    if fault == "is done while it writes":
        assert scene.told(ROOM) == [1, 0]


@pytest.mark.parametrize("fault", ["parks only what it still writes", "decides alone"])
def test_ranks_that_decide_alone_part_ways_and_hang(raised: Raise, fault: str) -> None:
    """The worst bug there can be: one rank polls a queue that is empty on the other."""
    scene = raised(fault=fault, limit_s=1.0)

    def until_they_part() -> None:
        one_rank_still_writes(scene, UNTIL_MIDDLE)
        scene.ranks.iterate(times=2)

    with pytest.raises(RankEndedError):
        until_they_part()


def test_without_the_guard_an_aborted_request_is_sent_to_its_end(raised: Raise) -> None:
    """Aborted between its last chunk's forward and the result: stock sends it and tells decode Success."""
    scene = raised(fault="sends what is aborted")
    scene.admit("a", ROOM, UNTIL_LAST_CHUNK)
    scene.ranks.iterate(times=2)
    scene.ranks.abort("a")
    scene.play()

    assert scene.decode.ranks[0].hears() == [(ROOM, SUCCESS, 0)]
    assert scene.answers("a") == FINISHED


def inflight(scene: Scene, *held: int) -> None:
    """The last chunk is with decode, or held at the ranks that are named."""
    for number in held:
        scene.ranks[number].hold()
    scene.admit("a", ROOM, 4)
    scene.ranks.iterate(times=2)
    for number in held:
        scene.ranks[number].begun(1)
    for member in scene.ranks:
        if member.number not in held:
            member.settled()


def test_abort_between_success_of_one_rank_and_of_the_other(raised: Raise) -> None:
    """Rank 0 has told decode Success. Rank 1's transfer is done after the abort: Success on both, which nothing
    contradicts."""
    scene = raised()
    inflight(scene, 1)

    scene.ranks.abort("a")
    assert scene.inflight() == ["a"]
    scene.ranks[1].let_go()
    scene.play()

    assert scene.answers("a") == FINISHED
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([0, 0], [1, 1])
    assert [rank.hears() for rank in scene.decode.ranks] == [[(ROOM, SUCCESS, 0)], [(ROOM, SUCCESS, 1)]]
    assert scene.is_clean(ROOM)


def test_a_rank_that_has_succeeded_says_nothing_when_the_other_fails(raised: Raise) -> None:
    """MIN over Success and an end: Failed on both, told by rank 1 alone."""
    scene = raised()
    inflight(scene, 1)

    scene.ranks.abort("a")
    scene.ranks[1].let_go(-1)
    scene.play()

    assert scene.answers("a") == ABORTED
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([0, 1], [1, 0])
    assert scene.decode.ranks[0].hears() == [(ROOM, SUCCESS, 0)]
    assert scene.is_clean(ROOM)


def test_without_the_guard_an_abort_after_success_contradicts_it(raised: Raise) -> None:
    scene = raised(fault="forgets its success")
    inflight(scene, 0, 1)

    scene.ranks.abort("a")
    scene.ranks.each("let_go")
    scene.play()

    assert scene.answers("a") == ABORTED
    assert scene.decode.ranks[0].hears() == [(ROOM, SUCCESS, 0)]


@pytest.mark.parametrize("fault", ["", "forgets its success"])
def test_abort_between_consensus_and_pop(raised: Raise, fault: str) -> None:
    """The two polls of a pipeline stage, the abort between them: what was agreed on is what is popped."""
    scene = raised(fault=fault)
    inflight(scene, 0, 1)
    scene.ranks.each("let_go")
    scene.ranks.each("settled")

    assert scene.ranks.agreed("transferred") == ["a"]
    scene.ranks.each("abort", "a")
    assert scene.ranks.agreed("pop", ["a"]) == ["a"]

    assert (ABORTED if fault else FINISHED) == scene.answers("a")
    assert scene.told(ROOM) == [0, 0]


@pytest.mark.parametrize("fault", ["", "forgets the verdict"])
def test_success_between_consensus_and_pop(raised: Raise, fault: str) -> None:
    """Agreed to have failed, by the drain timeout; then the held transfers end in Success after all."""
    scene = raised(fault=fault)
    inflight(scene, 0, 1)
    scene.ranks.each("expire_drain")
    scene.ranks.each("abort", "a")

    assert scene.ranks.agreed("transferred") == ["a"]
    scene.ranks.each("let_go")
    scene.ranks.each("settled")
    assert scene.ranks.agreed("pop", ["a"]) == ["a"]

    assert (FINISHED if fault else ABORTED) == scene.answers("a")


def test_decodes_abort_reaches_one_rank_between_poll_and_pop(raised: Raise) -> None:
    """Another thread of rank 1 fails the room just after the reduction: that round stands, the next one begins the
    end on both."""
    scene = raised()
    inflight(scene, 0, 1)
    scene.ranks[1].after_next_poll(ROOM, FAILED)
    for member in scene.ranks:
        member.begin("iterate")
    scene.decode.ranks[1].abort(scene.ranks[1], ROOM)
    for member in scene.ranks:
        member.finish()

    assert scene.inflight() == ["a"]
    scene.ranks.iterate(times=2)
    assert scene.inflight() == ["a"]
    scene.ranks[0].let_go()
    scene.ranks[1].let_go(-1)
    scene.play()
    assert scene.answers("a") == ABORTED
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([0, 1], [1, 0])
    assert scene.is_clean(ROOM)


def test_transfer_error_on_one_rank_during_an_abort(raised: Raise) -> None:
    scene = raised()
    inflight(scene, 0, 1)
    scene.ranks.abort("a")

    scene.ranks[1].let_go(-1)
    scene.ranks[1].settled()
    scene.ranks.iterate(times=2)
    assert scene.inflight() == ["a"]
    assert scene.told(ROOM) == [0, 0]

    scene.ranks[0].let_go(-1)
    scene.ranks[0].settled()
    scene.ranks.iterate()
    assert scene.inflight() == []
    assert scene.told(ROOM) == [1, 1]
    assert scene.answers("a") == ABORTED
    assert scene.is_clean(ROOM)


@pytest.mark.parametrize("fault", ["", "passes a failure on"])
def test_transfer_error_on_one_rank_alone(raised: Raise, fault: str) -> None:
    """Stock ends it on every rank at once, and frees the source pages that the other rank still reads."""
    scene = raised(fault=fault)
    inflight(scene, 0, 1)
    scene.ranks[1].let_go(-1)
    scene.ranks[1].settled()

    scene.ranks.iterate(times=2)
    if fault:
        assert (scene.inflight(), scene.ranks[0].transfers(), scene.ranks[0].free()) == ([], (1, 0), (PAGES, SLOTS))
        return
    assert scene.inflight() == ["a"]
    assert scene.told(ROOM) == [0, 0]

    scene.ranks[0].let_go()
    scene.ranks[0].settled()
    scene.ranks.iterate()
    assert scene.inflight() == []
    assert scene.answers("a") == ABORTED
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([0, 1], [1, 0])
    assert scene.is_clean(ROOM)


def test_drain_timeout_on_one_rank_changes_a_poll_value_and_nothing_else(raised: Raise) -> None:
    scene = raised()
    inflight(scene, 0, 1)
    scene.ranks[1].expire_drain()

    scene.ranks.abort("a")
    scene.ranks.iterate(times=3)
    assert scene.inflight() == ["a"]
    assert (scene.told(ROOM), scene.answers("a")) == ([0, 0], [])

    scene.ranks[0].let_go(-1)
    scene.ranks[0].settled()
    scene.ranks.iterate()
    assert scene.inflight() == []
    assert scene.answers("a") == ABORTED
    assert (scene.told(ROOM), scene.drained(ROOM)) == ([1, 1], [True, False])
    assert [counts["undrained_lives"] for counts in scene.ranks.each("counts")] == [0, 1]

    scene.ranks[1].let_go(-1)
    assert scene.is_clean(ROOM)
    assert scene.told(ROOM) == [1, 1]


def test_a_rank_that_leaves_at_its_drain_timeout_hangs_the_others(raised: Raise) -> None:
    scene = raised(fault="decides alone", limit_s=1.0)
    inflight(scene, 0, 1)
    scene.ranks[1].expire_drain()

    def until_they_part() -> None:
        scene.ranks.abort("a")
        scene.ranks.iterate(times=2)

    with pytest.raises(RankEndedError):
        until_they_part()
