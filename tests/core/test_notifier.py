"""The core through its one door: what ranks say, what decode is told, what settles it."""

import pytest

from sidecar.model import (
    Notice,
    Settled,
)
from tests.core.scene import E1, E2, START, TTL_S, Scene, hello


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


def test_a_failed_room_is_told_to_everyone_who_shook_hands(scene: Scene) -> None:
    scene.opened(1, 1)
    scene.handshake(1, 1, E1)
    scene.handshake(1, 1, E2)
    scene.failed(1, 1)

    assert scene.told() == [(E1, 1), (E2, 1)]


def test_the_notice_carries_rank_and_first_cause() -> None:
    scene = Scene()
    scene.join("p", hello("p", prefill_rank=3))
    scene.handshake(1, 1, E1)
    scene.failed(1, 1, cause="queue full")
    scene.failed(1, 1, cause="later")

    assert scene.sent == [(E1, 1, Notice(3, "queue full", "mooncake"))]


def test_a_late_handshake_is_answered(scene: Scene) -> None:
    scene.opened(1, 1)
    scene.failed(1, 1)
    scene.handshake(1, 1, E1)

    assert scene.told() == [(E1, 1)]
    assert scene.notifier.stats.handshakes_late == 1


def test_a_room_refused_before_anything_else_is_answered(scene: Scene) -> None:
    scene.failed(1, 1)
    scene.handshake(1, 1, E1)

    assert scene.told() == [(E1, 1)]


def test_success_is_never_told(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.succeeded(1, 1)
    scene.failed(1, 1)
    scene.handshake(1, 1, E2)

    assert scene.told() == []
    assert scene.notifier.stats.rooms_contradicted == 1


def test_undrained_is_recorded_counted_and_not_told_to_whom_is_not_known_to_hold(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1, drained=False)
    scene.handshake(1, 1, E2)

    assert scene.told() == []
    assert scene.notifier.stats.rooms_undrained == 1
    assert scene.notifier.stats.notices_suppressed == {"undrained": 2}
    assert scene.notifier.rooms.records == 1


def test_drained_after_all_is_told(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1, drained=False)
    scene.failed(1, 1)

    assert scene.told() == [(E1, 1)]


def test_a_backend_without_a_known_message_is_not_written_to() -> None:
    scene = Scene()
    scene.join("p", hello("p", backend="fake"))
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.handshake(1, 1, E2)

    assert scene.told() == []
    assert scene.open == set()
    assert scene.notifier.stats.notices_suppressed == {"wire": 2}


def test_a_port_that_opens_later_is_told_when_it_opens(scene: Scene) -> None:
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(100.0)

    assert scene.told() == []
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_nothing_is_told_after_decodes_own_timeout(scene: Scene) -> None:
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(TTL_S)
    scene.revive(E1)

    assert scene.told() == []
    assert scene.ended() == {"expired": 1}


def test_time_already_gone_counts(scene: Scene) -> None:
    scene.failed(1, 1, at_s=START - TTL_S + 1)
    scene.advance(1.0)
    scene.handshake(1, 1, E1)

    assert scene.told() == []


def test_a_connection_that_holds_settles_and_the_rank_hears_of_it(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)

    assert scene.settled() == []
    scene.advance(5.0)

    assert scene.settled() == [Settled(1, 1, E1)]
    assert scene.ended() == {"held_up": 1}


def test_decodes_abort_settles_at_once(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.aborted(1, 1, E1)
    scene.die(E1)
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]
    assert scene.settled() == [Settled(1, 1, E1)]


def test_a_peer_that_dies_in_time_is_told_again_when_it_returns(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.die(E1)
    scene.advance(60.0)
    scene.revive(E1)

    assert scene.told() == [(E1, 1), (E1, 1)]


def test_a_restarted_decode_is_owed_nothing_of_its_old_life(scene: Scene) -> None:
    scene.handshake(1, 1, E1, session="old")
    scene.failed(1, 1)
    scene.die(E1)
    scene.registered(E1, "new")
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]
    assert scene.ended() == {"restarted": 1}


def test_registering_again_under_the_same_session_is_nothing(scene: Scene) -> None:
    scene.handshake(1, 1, E1, session="s")
    scene.failed(1, 1)
    scene.registered(E1, "s")

    assert scene.ended() == {}


def test_a_decode_that_restarts_before_the_end_is_not_told_of_it(scene: Scene) -> None:
    scene.handshake(1, 1, E1, session="old")
    scene.registered(E1, "new")
    scene.failed(1, 1)

    assert scene.told() == []
    assert scene.notifier.stats.notices_suppressed == {"restarted": 1}


def test_an_old_registration_replayed_ends_nothing(scene: Scene) -> None:
    old = scene.registered(E1, "old")
    scene.registered(E1, "new")
    scene.handshake(1, 1, E1, session="new")
    scene.failed(1, 1)
    scene.tell(old)

    assert scene.ended() == {}
