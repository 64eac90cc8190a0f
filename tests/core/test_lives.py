"""Several lives of one room, and facts that come again."""

import pytest

from sidecar.model import (
    Fact,
    Settled,
)
from tests.core.scene import E1, E2, TTL_S, Scene


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


def test_a_newer_life_is_never_failed_by_an_old_record(scene: Scene) -> None:
    scene.alive.discard(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.handshake(1, 2, E1)
    scene.revive(E1)

    assert scene.told() == []
    assert scene.ended() == {"superseded": 1}


def test_an_old_life_never_handed_off_is_still_told_while_a_newer_one_is_open(scene: Scene) -> None:
    scene.alive.discard(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_an_old_life_handed_off_is_not_sent_again_once_a_newer_one_is_open(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.die(E1)
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_a_handshake_of_an_older_life_than_the_endpoint_is_in_is_ignored(scene: Scene) -> None:
    scene.failed(1, 1)
    scene.handshake(1, 2, E1)
    scene.handshake(1, 1, E1)

    assert scene.told() == []
    assert scene.notifier.stats.handshakes_superseded == 1


def test_another_ranks_newer_life_supersedes_nothing(scene: Scene) -> None:
    scene.join("q")
    scene.alive.discard(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2, "q")
    scene.handshake(1, 2, E1, process="q")
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_decodes_abort_of_a_newer_life_voids_older_notices(scene: Scene) -> None:
    scene.alive.discard(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.opened(1, 2)
    scene.aborted(1, 2, E1)

    assert scene.ended() == {"decode_aborted": 1}


def test_replaying_everything_tells_nobody_twice(scene: Scene) -> None:
    facts: list[Fact] = [scene.opened(1, 1), scene.handshake(1, 1, E1), scene.failed(1, 1), scene.handshake(1, 1, E2)]
    scene.join()
    for fact in facts:
        scene.tell(fact)

    assert scene.told() == [(E1, 1), (E2, 1)]
    assert scene.notifier.stats.facts_replayed == 4


def test_an_open_room_comes_back_with_the_replay(scene: Scene) -> None:
    facts: list[Fact] = [scene.opened(1, 1), scene.handshake(1, 1, E1)]
    scene.leave()
    scene.join()

    assert scene.notifier.rooms.open_rooms == 0
    for fact in facts:
        scene.tell(fact)
    scene.failed(1, 1)

    assert scene.told() == [(E1, 1)]


def test_a_room_that_is_not_replayed_is_forgotten(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.join()
    scene.failed(1, 1)

    assert scene.told() == []


def test_what_is_settled_is_said_again_when_asked_again(scene: Scene) -> None:
    """The answer may have been lost with the stream; without this the rank would replay the room for its whole time."""
    scene.opened(1, 1)
    fact = scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave()
    scene.advance(5.0)
    scene.join()
    scene.tell(fact)

    assert scene.settled() == [Settled(1, 1, E1)]
    assert scene.told() == [(E1, 1)]


def test_a_new_handshake_in_an_ended_room_is_answered_again(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(5.0)
    scene.handshake(1, 1, E1)

    assert scene.told() == [(E1, 1), (E1, 1)]


def test_a_new_handshake_while_handed_off_is_answered_again(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.handshake(1, 1, E1)

    assert scene.told() == [(E1, 1), (E1, 1)]
    scene.advance(5.0)

    assert scene.ended() == {"held_up": 1}


def test_an_expired_end_replayed_leaves_no_open_room_behind(scene: Scene) -> None:
    facts: list[Fact] = [scene.opened(1, 1), scene.handshake(1, 1, E1), scene.failed(1, 1)]
    scene.advance(TTL_S)
    scene.join()
    for fact in facts:
        scene.tell(fact)

    assert scene.notifier.rooms.open_rooms == 0
    assert scene.told() == [(E1, 1)]
