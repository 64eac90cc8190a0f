"""Context parallelism and DP attention, which do not run on a CPU: the groups that agree, and those that must not."""

import pytest

from tests.engine.ranks.scene import Raise, Scene
from tests.engine.ranks.spec import Abort, Admit, Layout

pytestmark = pytest.mark.engine

ROOM = 4720
ABORTED = ["FINISH_ABORT"]
FINISHED = ["FINISH_LENGTH"]


def one_writes_on(scene: Scene, number: int) -> None:
    """Aborted between chunks, when rank `number` alone still writes its share of the first one."""
    scene.ranks[number].hold()
    scene.admit("a", ROOM, 12)
    scene.ranks.iterate(times=2)
    scene.ranks[number].begun(1)
    scene.ranks.abort("a")


@pytest.mark.parametrize(
    ("layout", "writer"),
    [
        pytest.param(Layout(tp=1, cp=2), 0, id="cp2, the rank that sends for both"),
        pytest.param(Layout(tp=1, cp=2, all_cp=True), 0, id="cp2, each sends its share, first held"),
        pytest.param(Layout(tp=1, cp=2, all_cp=True), 1, id="cp2, each sends its share, second held"),
        pytest.param(Layout(tp=2, cp=2), 1, id="tp2 x cp2, one of those that send"),
        pytest.param(Layout(tp=2, cp=2, all_cp=True), 3, id="tp2 x cp2, the last of all"),
    ],
)
def test_all_ranks_of_a_shard_leave_together(raised: Raise, layout: Layout, writer: int) -> None:
    scene = raised(layout=layout, chunk=8)
    one_writes_on(scene, writer)

    scene.ranks.iterate(times=2)
    assert scene.inflight() == ["a"]
    assert (scene.told(ROOM), scene.answers("a")) == ([0] * layout.world, [])

    scene.ranks[writer].let_go()
    scene.ranks[writer].settled()
    scene.ranks.iterate()
    assert scene.inflight() == []
    assert scene.told(ROOM) == [1] * layout.world
    assert scene.answers("a") == ABORTED
    scene.ranks.iterate()
    assert scene.is_clean(ROOM)


def test_without_the_wait_a_cp_rank_is_told_of_while_another_writes(raised: Raise) -> None:
    scene = raised(layout=Layout(tp=1, cp=2, all_cp=True), chunk=8, fault="is done while it writes")
    one_writes_on(scene, 1)

    assert (scene.inflight(), scene.told(ROOM)) == ([], [1, 0])


def test_a_cp_rank_that_sends_nothing_does_not_win_over_one_that_was_aborted(raised: Raise) -> None:
    """It is at Success as soon as the last chunk is computed; the rank that sends for it decides."""
    scene = raised(layout=Layout(tp=1, cp=2))
    scene.ranks[0].hold()
    scene.admit("a", ROOM, 8)
    scene.ranks.iterate(times=3)
    scene.ranks[0].begun(1)
    scene.ranks.abort("a")
    assert scene.inflight() == ["a"]

    scene.ranks[0].let_go()
    scene.play()
    assert scene.answers("a") == ABORTED
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([1, 0], [0, 1])
    assert scene.is_clean(ROOM)


def test_cp_normal_traffic(raised: Raise) -> None:
    scene = raised(layout=Layout(tp=2, cp=2))
    scene.admit("a", ROOM, 12)
    scene.play()

    assert scene.answers("a") == FINISHED
    assert scene.decode.holds("a", ROOM)
    assert scene.is_clean(ROOM)


def test_dp_groups_poll_apart(raised: Raise) -> None:
    """DP attention: each group has requests of its own. One is parked and polls; the other serves, then idles, and
    never enters its collectives."""
    scene = raised(layout=Layout(tp=1, dp=2))
    first, second = scene.ranks
    first.hold()
    one_of_each = (Admit("a", ROOM, 12), Admit("b", ROOM + 1, 4))
    for member, message in zip(scene.ranks, one_of_each, strict=True):
        member.ask("iterate", message)
    scene.decode.shake(ROOM, 12, only=0)
    scene.decode.shake(ROOM + 1, 4, only=1)
    scene.ranks.iterate(times=2)
    first.begun(1)
    second.settled()
    scene.ranks.each("phase", "abort")
    scene.ranks.iterate(Abort("a"))
    for _ in range(3):
        first.ask("iterate")  # alone: its group waits for nobody else
    assert (first.queues()["inflight"], second.queues()["inflight"]) == (["a"], [])
    assert [kind for _, kind, _ in second.answers()] == FINISHED

    first.let_go()
    first.settled()
    first.ask("iterate")
    assert [kind for _, kind, _ in first.answers()] == ABORTED
    assert scene.told(ROOM) == [1, 0]
    polls = [[entry for entry in member.collectives() if entry[0] == "abort"] for member in scene.ranks]
    assert len(polls[0]) == 2 * 5
    assert len(polls[1]) in (0, 2)  # for its own request, unless that one was through before
    assert {entry[3] for entries in polls for entry in entries} == {(1,)}
    scene.ranks.iterate()
    assert scene.is_clean(ROOM, ROOM + 1)
