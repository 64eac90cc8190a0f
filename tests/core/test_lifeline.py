"""Death of prefill ranks: who is told of what, and when."""

import pytest

from sidecar.core.lifeline import DEATH_CAUSE
from tests.core.scene import E1, E2, Scene

GRACE_S = 0.1


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.join()
    return made


def kill(scene: Scene, process: str = "p") -> None:
    scene.leave(process)
    scene.process_dies(process)


def test_every_open_room_of_a_dead_rank_is_told_after_the_grace(scene: Scene) -> None:
    for room, endpoint in ((1, E1), (2, E2)):
        scene.opened(room, 1)
        scene.handshake(room, 1, endpoint)
    kill(scene)
    assert scene.told() == []

    scene.advance(GRACE_S)

    assert {notice.cause for _, _, notice in scene.sent} == {DEATH_CAUSE}
    assert scene.told() == [(E1, 1), (E2, 2)]
    assert (scene.notifier.stats.ranks_died, scene.notifier.stats.rooms_orphaned) == (1, 2)


def test_nothing_is_idle_while_a_grace_runs(scene: Scene) -> None:
    """A sidecar that is ended right after its engine stays until decode is told."""
    scene.opened(1, 1)
    scene.handshake(1, 1, E1)
    kill(scene)
    scene.notifier.begin_shutdown(scene.now)
    was_idle = scene.notifier.is_idle
    scene.advance(GRACE_S)

    assert (was_idle, scene.notifier.is_idle) == (False, True)
    assert scene.told() == [(E1, 1)]


def test_a_room_whose_transfer_had_succeeded_is_never_told(scene: Scene) -> None:
    scene.opened(1, 1)
    scene.handshake(1, 1, E1)
    scene.succeeded(1, 1)
    kill(scene)
    scene.advance(GRACE_S)

    assert scene.told() == []


def test_a_room_without_a_handshake_has_nobody_to_tell(scene: Scene) -> None:
    scene.opened(1, 1)
    kill(scene)
    scene.advance(GRACE_S)

    assert scene.told() == []


def test_a_lost_stream_is_no_death(scene: Scene) -> None:
    """A rank that is paused, or has broken off its stream, still writes."""
    scene.opened(1, 1)
    scene.handshake(1, 1, E1)
    scene.leave()
    scene.advance(60.0)

    assert scene.told() == []


def test_a_rank_that_came_back_is_not_dead(scene: Scene) -> None:
    """The watch on its old stream must not be held against it."""
    scene.handshake(1, 1, E1)
    scene.leave()
    scene.join()
    scene.handshake(1, 1, E1)
    scene.process_dies()
    scene.advance(GRACE_S)

    assert scene.told() == []
    assert scene.notifier.stats.ranks_died == 0


def test_a_process_that_says_hello_within_the_grace_has_no_orphans(scene: Scene) -> None:
    """Its replay says what lives."""
    scene.handshake(1, 1, E1)
    kill(scene)
    scene.join()
    scene.advance(GRACE_S)

    assert scene.told() == []


def test_an_orderly_end_tells_nobody(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.goodbye()
    kill(scene)
    scene.advance(GRACE_S)

    assert scene.told() == []


def test_a_room_that_a_living_sibling_still_has_open_waits_for_its_end(scene: Scene) -> None:
    """The sibling may be writing to the same decode pages."""
    scene.join("q")
    for process in ("p", "q"):
        scene.opened(1, 1, process)
        scene.handshake(1, 1, E1, process=process)
    kill(scene)
    scene.advance(5.0)
    assert scene.told() == []

    scene.failed(1, 1, process="q")

    assert sorted(scene.told()) == [(E1, 1), (E1, 1)]


def test_a_room_is_told_when_its_last_sibling_has_died(scene: Scene) -> None:
    scene.join("q")
    for process in ("p", "q"):
        scene.opened(1, 1, process)
        scene.handshake(1, 1, E1, process=process)
    kill(scene)
    scene.advance(5.0)
    kill(scene, "q")
    scene.advance(GRACE_S)

    assert sorted(scene.told()) == [(E1, 1), (E1, 1)]


def test_other_engines_hold_nothing(scene: Scene) -> None:
    """The same room number at another engine is another request."""
    scene.join("other", engine="elsewhere")
    scene.opened(1, 1, "other")
    scene.handshake(1, 1, E1)
    kill(scene)
    scene.advance(GRACE_S)

    assert scene.told() == [(E1, 1)]


def test_the_sidecar_does_not_retire_while_it_holds_orphans() -> None:
    scene = Scene(idle_exit_s=0.05)
    scene.join()
    scene.handshake(1, 1, E1)
    kill(scene)
    scene.advance(GRACE_S)

    assert scene.told() == [(E1, 1)]


def test_the_living_ranks_of_a_broken_engine_are_asked_to_end_their_requests() -> None:
    scene = Scene()
    for process, engine in (("dead", "a"), ("sibling", "a"), ("stranger", "b")):
        scene.join(process, engine=engine)
    kill(scene, "dead")

    assert {process: scene.asked_to_end(process) for process in ("sibling", "stranger")} == {
        "sibling": True,
        "stranger": False,
    }


def test_a_held_room_is_told_once_the_other_rank_has_ended_it_as_asked() -> None:
    scene = Scene()
    for process in ("dead", "sibling"):
        scene.join(process)
        scene.opened(1, 1, process)
        scene.handshake(1, 1, E1 if process == "dead" else E2, process=process)
    kill(scene, "dead")
    scene.advance(GRACE_S)
    assert scene.told() == []

    scene.failed(1, 1, process="sibling")

    assert sorted(scene.told()) == [(E1, 1), (E2, 1)]


def test_nobody_is_asked_to_end_anything_after_a_goodbye() -> None:
    scene = Scene()
    for process in ("first", "second"):
        scene.join(process, engine="a")
    scene.goodbye("first")
    kill(scene, "first")

    assert not scene.asked_to_end("second")
