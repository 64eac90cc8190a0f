"""What is kept of a life for `trace` and for the log: when what happened, and that it is finished."""

import math

import pytest

from sidecar.core.actions import Retire
from sidecar.core.keys import LifeKey, Outcome
from sidecar.core.limits import Limits, OutboxLimits, RoomLimits
from sidecar.core.room import TOLD_LIMIT, Room, RoomState
from sidecar.model import DecodeEndpoint, RoomConcluded, TerminalStatus
from tests.core.scene import E1, E2, START, TTL_S, Scene


def finished(scene: Scene) -> list[tuple[int, int]]:
    return [(room.key.room, room.key.life) for room in scene.notifier.take_finished()]


def life(scene: Scene, room: int = 1, number: int = 1) -> Room:
    found = scene.notifier.rooms.find(LifeKey("p", room, number))
    assert found is not None
    return found


def joined(**limits: object) -> Scene:
    scene = Scene(**limits)  # type: ignore[arg-type]
    scene.join()
    return scene


def test_a_life_keeps_when_it_was_opened_met_and_ended() -> None:
    scene = joined()
    scene.opened(1, 1)
    scene.advance(1.0)
    scene.handshake(1, 1, E1)
    scene.advance(1.0)
    scene.failed(1, 1)

    room = life(scene)
    assert (room.known_since_s, room.handshakes[0].at_s, room.concluded_at_s) == (START, START + 1, START + 2)


@pytest.mark.parametrize(
    ("said", "kept"), [(START - 2.5, START - 2.5), (START + 1, 0.0), (-1.0, 0.0), (math.nan, 0.0), (-math.inf, 0.0)]
)
def test_an_end_keeps_when_it_began_if_that_can_be(said: float, kept: float) -> None:
    scene = joined()
    scene.tell(RoomConcluded(1, 1, 1, TerminalStatus.FAILED, "gone", True, START, said))

    assert life(scene).end_began_at_s == kept


def test_a_notice_that_has_ended_keeps_its_attempts_and_its_evidence() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.die(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(1.0)
    scene.revive(E1)
    scene.advance(5.0)

    told = life(scene).told[0]
    assert (told.outcome, told.hand_offs, told.first_handed_off_at) == (Outcome.HELD_UP, 1, START + 1)
    assert told.refusals > 1
    assert START < told.refused_at < START + 1
    assert told.ended_at == START + 6


def test_the_last_hand_off_is_not_moved_by_a_refusal_after_it() -> None:
    """Settling counts from the refusal, the story does not."""
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(1.0)
    scene.full.add(E1)
    scene.handshake(2, 2, E1)
    scene.failed(2, 2)
    scene.full.clear()
    scene.advance(20.0)

    assert life(scene).told[0].last_handed_off_at == START
    assert life(scene).told[0].ended_at == START + 6


def test_a_life_is_finished_when_its_last_notice_has_ended() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.handshake(1, 1, E1)
    scene.handshake(1, 1, E2)
    scene.failed(1, 1)
    scene.aborted(1, 1, E2)
    assert finished(scene) == []

    scene.advance(5.0)
    assert finished(scene) == [(1, 1)]
    scene.advance(50.0)
    assert finished(scene) == []


def test_a_life_that_nobody_shook_hands_for_is_finished_at_once_and_again_after_a_late_one() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    said = scene.failed(1, 1)
    assert finished(scene) == [(1, 1)]
    scene.tell(said)
    assert finished(scene) == []

    scene.handshake(1, 1, E1)
    assert finished(scene) == []
    scene.advance(5.0)
    assert finished(scene) == [(1, 1)]


def test_a_life_that_nobody_can_be_told_of_is_finished_when_it_expires() -> None:
    scene = joined()
    scene.die(E1)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(TTL_S)

    assert finished(scene) == [(1, 1)]
    assert scene.ended() == {"expired": 1}


def test_an_evicted_life_is_finished_with_what_it_owes() -> None:
    scene = joined(rooms=RoomLimits(records=1))
    scene.die(E1)
    for room in (1, 2):
        scene.handshake(room, room, E1)
        scene.failed(room, room)

    assert finished(scene) == [(1, 1)]


def test_an_undrained_life_is_finished_and_again_when_it_drained_after_all() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.handshake(1, 1, E1)
    scene.failed(1, 1, drained=False)
    assert finished(scene) == [(1, 1)]

    scene.failed(1, 1)
    scene.advance(5.0)
    assert finished(scene) == [(1, 1)]
    assert life(scene).state is RoomState.FAILED


def test_success_is_no_story() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.succeeded(1, 1)

    assert finished(scene) == []


def test_the_notices_kept_for_one_life_are_bounded() -> None:
    scene = joined()
    for port in range(1, TOLD_LIMIT + 3):
        endpoint = DecodeEndpoint("127.0.0.1", port)
        scene.handshake(1, 1, endpoint)
        scene.aborted(1, 1, endpoint)
        scene.handshake(1, 1, endpoint)
    scene.failed(1, 1)
    for port in range(1, TOLD_LIMIT + 3):
        scene.aborted(1, 1, DecodeEndpoint("127.0.0.1", port))

    assert len(life(scene).told) == TOLD_LIMIT
    assert life(scene).owed == 0


# -- the decode half's ack


def test_an_ack_settles_what_its_endpoint_is_owed() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.handshake(1, 1, E2)
    scene.failed(1, 1)
    scene.acknowledged(1, 1, E1)

    assert scene.ended() == {"acknowledged": 1}
    assert [settled.endpoint for settled in scene.settled()] == [E1]


def test_an_ack_ends_a_notice_that_has_no_other_evidence_before_the_connection_breaks() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.acknowledged(1, 1, E1)
    scene.die(E1)
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_an_ack_of_an_earlier_request_settles_no_later_one() -> None:
    """Decode put a new request into the room before its ack for the old one was read."""
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    early = scene.acknowledged(1, 1, E1)
    scene.die(E1)
    scene.handshake(1, 1, E1)
    scene.tell(early)

    assert len(scene.notifier.outbox) == 1


def test_an_ack_from_before_the_end_settles_nothing_when_it_is_heard_again() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    early = scene.acknowledged(1, 1, E1)
    scene.failed(1, 1)
    scene.tell(early)

    assert len(scene.notifier.outbox) == 1


def test_an_ack_of_a_life_that_is_open_or_unknown_means_nothing() -> None:
    scene = joined()
    scene.acknowledged(2, 2, E1)
    scene.handshake(1, 1, E1)
    scene.acknowledged(1, 1, E1)
    scene.acknowledged(1, 1, E2)
    scene.failed(1, 1)

    assert scene.told() == [(E1, 1)]


def test_an_ack_of_a_succeeded_life_means_nothing() -> None:
    scene = joined()
    scene.handshake(2, 2, E1)
    scene.succeeded(2, 2)
    scene.acknowledged(2, 2, E1)

    assert scene.told() == []


def test_an_ack_of_an_undrained_life_that_was_not_told_says_that_another_rank_told_it() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1, drained=False)
    scene.acknowledged(1, 1, E1)
    scene.failed(1, 1)

    assert scene.told() == []


def changed(scene: Scene, **limits: object) -> None:
    scene.notifier.change_limits(Limits(**limits))  # type: ignore[arg-type]
    scene.pump()


def test_a_smaller_table_of_records_evicts_the_oldest_at_once() -> None:
    scene = joined()
    for room in (1, 2, 3):
        scene.failed(room, room)
    changed(scene, rooms=RoomLimits(records=1))

    assert (scene.notifier.rooms.records, scene.notifier.rooms.tombstones) == (1, 2)
    assert scene.notifier.rooms.record_limit == 1
    scene.handshake(1, 1, E1)
    assert scene.told() == [(E1, 1)]


def test_what_is_handed_off_settles_by_the_new_time() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    changed(scene, outbox=OutboxLimits(settle_after_s=20.0))
    scene.advance(19.9)
    assert scene.ended() == {}

    scene.advance(0.1)
    assert scene.ended() == {"held_up": 1}


def test_an_idle_sidecar_ends_by_the_new_time() -> None:
    scene = Scene(idle_exit_s=60.0)
    changed(scene, idle_exit_s=5.0)
    scene.advance(5.0)

    assert Retire() in scene.others


def test_coming_up_again_is_a_reconnect() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    assert (scene.notifier.stats.endpoint_ups, scene.notifier.stats.reconnects) == (1, 0)

    scene.die(E1)
    scene.revive(E1)
    assert (scene.notifier.stats.endpoint_ups, scene.notifier.stats.reconnects) == (2, 1)
    assert scene.notifier.outbox.queue_of(E2) is None
