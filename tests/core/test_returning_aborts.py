"""Decode from sglang 0.5.21 on answers a notice with an ABORT that names the room alone, which may be in use again by
then. The rank says which life it is about (`sglang_hooks/rank.py`); here it settles that one and touches no newer one.
"""

from collections.abc import Callable

import pytest

from sidecar.core.keys import LifeKey
from sidecar.core.room import RoomState
from sidecar.model import DecodeEndpoint
from tests.core.scene import E1, E2, E3, Scene

Step = Callable[[Scene], object]


def told_of(scene: Scene, life: int) -> list[DecodeEndpoint]:
    return [key.endpoint for key in scene.sent_keys if key.life.life == life]


def ended(scene: Scene, *, is_late: bool, drained: bool) -> None:
    """The old life: E1 shook hands before or after its end, and was told."""
    scene.registered(E1, frames=20)
    if not is_late:
        scene.handshake(1, 1, E1)
    scene.failed(1, 1, drained=drained)
    if is_late:
        scene.handshake(1, 1, E1)
    assert told_of(scene, 1) == [E1]


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("drained", [False, True])
def test_it_settles_the_notice_that_it_answers(scene: Scene, is_late: bool, drained: bool) -> None:
    ended(scene, is_late=is_late, drained=drained)
    scene.aborted(1, 1, E1)

    assert scene.ended() == {"decode_aborted": 1}


def test_it_settles_a_notice_still_owed_while_the_room_is_in_use_again(scene: Scene) -> None:
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.handshake(1, 2, E2)
    scene.aborted(1, 1, E1)

    assert scene.ended() == {"decode_aborted": 1}
    room = scene.notifier.rooms.find(LifeKey("p", 1, 2))
    assert room is not None
    assert [known.is_settled for known in room.handshakes] == [False]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("newcomers", [[E1], [E2], [E1, E2]], ids=["the_same", "another", "both"])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("drained", [False, True])
def test_wherever_it_comes_in_between_the_new_life_fails_as_without_it(
    scene: Scene, place: int, newcomers: list[DecodeEndpoint], is_late: bool, drained: bool
) -> None:
    ended(scene, is_late=is_late, drained=drained)
    new: list[Step] = [
        lambda scene: scene.opened(1, 2),
        lambda scene: [scene.handshake(1, 2, endpoint) for endpoint in newcomers],
        lambda scene: scene.failed(1, 2),
    ]
    new.insert(place, lambda scene: scene.aborted(1, 1, E1))
    for step in new:
        step(scene)

    assert told_of(scene, 2) == newcomers


@pytest.mark.parametrize("place", range(3))
def test_wherever_it_comes_in_between_the_new_life_succeeds(scene: Scene, place: int) -> None:
    ended(scene, is_late=True, drained=True)
    new: list[Step] = [
        lambda scene: (scene.opened(1, 2), scene.handshake(1, 2, E1)),
        lambda scene: scene.succeeded(1, 2),
    ]
    new.insert(place, lambda scene: scene.aborted(1, 1, E1))
    for step in new:
        step(scene)
    room = scene.notifier.rooms.find(LifeKey("p", 1, 2))

    assert told_of(scene, 2) == []
    assert room is not None
    assert room.state is RoomState.SUCCEEDED


def test_one_about_a_life_that_is_forgotten_here_makes_none(scene: Scene) -> None:
    scene.opened(1, 2)
    scene.handshake(1, 2, E1)
    scene.aborted(1, 1, E1)

    assert [room.key.life for room in scene.notifier.lives_of(1)] == [2]
    scene.failed(1, 2)

    assert told_of(scene, 2) == [E1]


def test_it_is_for_the_endpoint_that_sent_it_only(scene: Scene) -> None:
    scene.alive.clear()
    for endpoint in (E1, E2, E3):
        scene.handshake(1, 1, endpoint)
    scene.failed(1, 1)
    scene.aborted(1, 1, E2)
    scene.revive(E1)
    scene.revive(E2)
    scene.revive(E3)

    assert told_of(scene, 1) == [E1, E3]


def test_a_replay_of_it_ends_nothing_that_came_to_be_owed_after_it(scene: Scene) -> None:
    """Nor does the handshake count as settled by it, when a successor hears both again."""
    scene.alive.clear()
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.succeeded(1, 2)
    abort = scene.aborted(1, 2, E1)
    late = scene.handshake(1, 1, E1)
    scene.tell(abort)
    scene.tell(late)
    scene.revive(E1)

    assert told_of(scene, 1) == [E1]
    assert scene.ended() == {"superseded": 1}  # owed while a newer life was known: told once
