"""No collective of our own: what each rank enters, counted, with the plugin and without."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.ranks.collectives import Collectives
from tests.engine.ranks.scene import Raise, Scene
from tests.engine.ranks.spec import Layout

pytestmark = pytest.mark.engine

ROOM = 4718
ROUNDS_PARKED = 3


Sequence = list[tuple[str, str, tuple[int, ...]]]


def idle(scene: Scene) -> None:
    scene.ranks.iterate(times=5)


@contextmanager
def under_way(scene: Scene) -> Iterator[None]:
    """What is sent in here is still under way at the poll of the iteration that sent it and done when this ends, on
    every rank: else the number of polls would hang on how soon a transfer worker gets its turn."""
    scene.ranks.each("hold")
    yield
    scene.ranks.each("let_go")
    scene.ranks.each("settled")


def rounds(scene: Scene, times: int) -> None:
    for _ in range(times):
        with under_way(scene):
            scene.ranks.iterate()


def traffic(scene: Scene) -> None:
    sizes = (4, 12, 8)
    for number, tokens in enumerate(sizes):
        with under_way(scene):
            scene.admit(f"r{number}", ROOM + number, tokens)
    rounds(scene, 10)
    for number in range(len(sizes)):
        assert scene.answers(f"r{number}") == ["FINISH_LENGTH"]
        scene.decode.free(ROOM + number)


def abort_of_a_chunked_request(scene: Scene) -> None:
    """Rank 1 still writes when the abort comes, and for two rounds more."""
    ranks = scene.ranks
    ranks[1].hold()
    scene.admit("a", ROOM + 3, 12)
    ranks.iterate(times=2)
    ranks[1].begun(1)
    ranks.abort("a")
    ranks.iterate(times=ROUNDS_PARKED - 2)
    ranks[1].let_go()
    ranks[1].settled()
    ranks.iterate(times=4)


def abort_of_a_waiting_request(scene: Scene) -> None:
    for rid, room, tokens in (("b", ROOM + 4, 12), ("c", ROOM + 5, 4)):
        with under_way(scene):
            scene.admit(rid, room, tokens)
        rounds(scene, 1)
    with under_way(scene):
        scene.ranks.abort("c")
    rounds(scene, 5)


def play(scene: Scene) -> dict[str, Sequence]:
    """The same script each time. Answers the sequence of each phase, the same on every rank."""
    for part in (idle, traffic, abort_of_a_chunked_request, abort_of_a_waiting_request, idle):
        scene.ranks.each("phase", part.__name__)
        part(scene)
    return by_phase(scene)


def by_phase(scene: Scene) -> dict[str, Sequence]:
    phases: dict[str, Sequence] = {}
    for phase, *entry in scene.ranks.agreed("collectives"):
        phases.setdefault(phase, []).append(tuple(entry))
    return phases


def poll_of(requests: int) -> Sequence:
    """sglang's: over attention TP, then over attention CP."""
    return [("all_reduce", "attn_tp", (requests,)), ("all_reduce", "attn_cp", (requests,))]


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(tp=2, cp=2)], ids=["tp2", "tp2 x cp2"])
def test_the_only_difference_is_the_engines_own_poll_of_what_is_parked(raised: Raise, layout: Layout) -> None:
    """Sequences of (which, group, shape), the same on every rank; equal with and without the plugin but for the rounds
    in which an aborted request is still being written somewhere."""
    ours = play(raised(layout=layout))
    stock = play(raised(layout=layout, plugin=False))

    parked = abort_of_a_chunked_request.__name__
    assert ours.pop(parked) == stock.pop(parked) + ROUNDS_PARKED * poll_of(1)
    assert ours == stock
    assert set(ours) == {traffic.__name__, abort_of_a_waiting_request.__name__}  # an idle engine enters none


def test_every_way_into_a_collective_is_counted() -> None:
    """The drift test: the counter finds them by their parameters."""
    expected = {"all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast", "barrier"}
    expected |= {"broadcast_object_list", "reduce", "reduce_scatter", "gather", "scatter", "all_to_all", "send", "recv"}

    assert expected <= set(Collectives.entry_points())
