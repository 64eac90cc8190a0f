"""A process that stood still has seen nothing of what connections did meanwhile."""

import pytest

from tests.core.scene import E1, Scene


@pytest.fixture
def scene() -> Scene:
    """A notice was handed off, then a minute passed unwatched: SIGSTOP, and its timers come before any news."""
    scene = Scene()
    scene.join()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.now += 60.0
    scene.notifier.stalled(scene.now)
    return scene


def test_time_that_was_not_watched_settles_nothing(scene: Scene) -> None:
    scene.advance(4.9)
    assert scene.settled() == []
    scene.die(E1)

    assert scene.notifier.outbox.pending == 1


def test_what_stays_up_after_it_settles(scene: Scene) -> None:
    scene.advance(5.0)

    assert scene.ended() == {"held_up": 1}
