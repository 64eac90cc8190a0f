"""Stock's own messages, carried: taken or refused, in order, at least once, never to a request that comes after."""

import pytest
from msgspec.structs import replace

from sidecar.core.actions import Retire, SendParcels
from sidecar.core.outbox import OutboxLimits
from sidecar.core.parcel_lane import ParcelLimits
from sidecar.core.parcel_reports import ENDED_LIMIT
from sidecar.model import (
    PARCEL_BYTES_LIMIT,
    PARCEL_FRAMES_LIMIT,
    ROOM_LIMIT,
    DecodeEndpoint,
    DecodeHandshake,
    ParcelGiven,
    ParcelRefused,
    ParcelsTaken,
    Welcome,
)
from tests.core.scene import E1, E2, E3, START, TTL_S, Scene

SUCCESS = (b"1", b"4", b"0")


def standing(**limits: object) -> Scene:
    scene = Scene(**limits)  # type: ignore[arg-type]
    scene.join()
    for endpoint in (E1, E2):
        scene.registered(endpoint)
    scene.handshake(1, 1, E1)
    return scene


def reports(scene: Scene, process: str = "p") -> list[ParcelsTaken | ParcelRefused]:
    replies = scene.replies[scene.streams[process]]
    return [reply for reply in replies if isinstance(reply, ParcelsTaken | ParcelRefused)]


def ends(scene: Scene) -> dict[str, int]:
    return dict(scene.notifier.stats.parcels_ended)


def rooms(scene: Scene, endpoint: DecodeEndpoint = E1) -> list[int]:
    carried = [int(frames[0]) for to, frames in scene.carried if to == endpoint]
    scene.carried.clear()
    return carried


def test_a_welcome_says_that_parcels_are_taken() -> None:
    scene = Scene()

    assert scene.replies[scene.join()] == [Welcome(1, "first", hears_refusals=True, takes_parcels=True)]


def test_a_parcel_is_handed_off_as_it_is_and_its_rank_is_told_that_it_was_taken() -> None:
    scene = standing()

    given = scene.gives(1, E1)

    assert scene.carried == [(E1, SUCCESS)]
    assert reports(scene) == []

    scene.advance(0.06)

    assert [ParcelsTaken(given.seq)] == reports(scene)


def test_taken_words_keep_company() -> None:
    """Each one wakes a thread beside a busy scheduler."""
    scene = standing()
    given = [scene.gives(room, E1) for room in range(100)]

    scene.advance(0.06)

    assert [ParcelsTaken(given[-1].seq)] == reports(scene)


def test_parcels_go_in_order_and_before_notices() -> None:
    """A request that waits for its Success counts in milliseconds."""
    scene = standing()
    scene.die(E1)
    for room in (5, 3, 4):
        scene.gives(room, E1)
    scene.failed(1, 1)
    scene.notifier.endpoint_up(E1, scene.now)
    actions = scene.notifier.take_actions()

    assert [SendParcels, "SendNotices"] == [type(actions[0]), type(actions[1]).__name__]
    assert isinstance(actions[0], SendParcels)
    assert [parcel.room for parcel in actions[0].parcels] == [5, 3, 4]


def test_many_parcels_take_turns_in_batches() -> None:
    scene = standing()
    scene.die(E1)
    for room in range(1, 201):
        scene.gives(room, E1)

    scene.revive(E1)

    assert list(range(1, 201)) == rooms(scene)


def test_what_was_not_delivered_for_sure_goes_again_before_what_was_never_tried() -> None:
    """S1: decode was away for a moment. Stock's socket would be deaf from here on."""
    scene = standing()
    scene.gives(1, E1)
    scene.die(E1)
    scene.gives(2, E1)
    rooms(scene)

    scene.revive(E1)

    assert rooms(scene) == [1, 2]
    assert scene.notifier.stats.parcels_handed_off_again == 1


def test_a_parcel_ends_when_its_connection_has_stayed_up() -> None:
    scene = standing()
    given = scene.gives(1, E1)

    scene.advance(4.9)
    assert ends(scene) == {}
    assert len(scene.notifier.parcels) == 1

    scene.advance(1.2)

    assert ends(scene) == {"held_up": 1}
    assert given.seq in [seq for reply in reports(scene) if isinstance(reply, ParcelsTaken) for seq in reply.ended]
    assert len(scene.notifier.parcels) == 0


def test_what_ends_at_many_endpoints_is_reported_in_one_reply() -> None:
    scene = standing()
    scene.advance(0.1)
    scene.gives(1, E1)
    scene.advance(0.3)
    scene.gives(2, E2)
    scene.advance(0.3)
    before = len(reports(scene))

    scene.advance(6.0)

    assert [len(reply.ended) for reply in reports(scene)[before:] if isinstance(reply, ParcelsTaken)] == [2]


def test_a_frozen_decode_does_not_settle_a_parcel() -> None:
    """It takes no more, and what it has taken it may never read."""
    scene = standing()
    scene.gives(1, E1)
    scene.full.add(E1)
    scene.advance(3.0)
    scene.gives(2, E1)

    scene.advance(4.0)
    assert ends(scene) == {}

    scene.full.clear()
    scene.advance(12.0)

    assert ends(scene) == {"held_up": 2}
    assert rooms(scene) == [1, 2]


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("late", {"take_by_s": START - 0.001}),
        ("stranger", {"endpoint": E3}),
        ("malformed", {"frames": ()}),
        ("malformed", {"frames": (b"1",) * (PARCEL_FRAMES_LIMIT + 1)}),
        ("malformed", {"frames": (b"1" * (PARCEL_BYTES_LIMIT + 1),)}),
        ("malformed", {"room": -1}),
        ("malformed", {"room": ROOM_LIMIT}),
    ],
)
def test_what_is_refused_is_told_at_once_and_pushed_by_nobody(reason: str, changes: dict[str, object]) -> None:
    """Promise 13 for `stranger`: local input cannot aim the sidecar."""
    scene = standing()
    given = ParcelGiven(scene.seq(), 1, E1, "s", SUCCESS, START + 0.15)

    scene.tell(replace(given, **changes))

    assert [ParcelRefused(given.seq, reason), ParcelsTaken(given.seq)] == reports(scene)
    assert scene.carried == []
    assert {reason: 1} == scene.notifier.stats.parcels_refused


def test_a_seq_that_is_none_is_implausible() -> None:
    scene = standing()

    scene.tell(ParcelGiven(-1, 1, E1, "s", SUCCESS, START + 0.15))

    assert scene.notifier.stats.facts_implausible == 1
    assert scene.carried == []


def test_without_a_socket_for_the_endpoint_stock_has_to_push() -> None:
    scene = Scene(outbox=OutboxLimits(connections=1))
    scene.join()
    for endpoint in (E1, E2):
        scene.registered(endpoint)
    scene.handshake(1, 1, E1)
    scene.gives(1, E1)
    given = scene.gives(2, E2)

    assert [ParcelRefused(given.seq, "no_socket")] == [r for r in reports(scene) if isinstance(r, ParcelRefused)]


def test_a_connection_with_parcels_is_not_closed_for_another_one() -> None:
    scene = Scene(outbox=OutboxLimits(connections=1))
    scene.join()
    scene.registered(E1)
    scene.gives(1, E1)
    scene.handshake(2, 1, E2)

    assert {E1} == scene.open

    scene.advance(6.0)
    scene.handshake(2, 1, E2)

    assert {E2} == scene.open


def test_a_parcel_whose_socket_was_given_away_goes_when_there_is_one_again() -> None:
    scene = Scene(outbox=OutboxLimits(connections=1))
    scene.join()
    scene.registered(E1)
    scene.gives(1, E1)
    scene.die(E1)
    scene.advance(2.0)
    scene.handshake(2, 1, E2)
    assert {E2} == scene.open
    rooms(scene)
    scene.alive.add(E1)
    scene.die(E2)

    scene.advance(10.0)

    assert rooms(scene) == [1]


def test_an_idle_connection_is_closed_once_its_last_parcel_has_ended() -> None:
    scene = Scene(outbox=OutboxLimits(idle_close_s=10.0))
    scene.join()
    scene.registered(E1)
    scene.gives(1, E1)
    scene.die(E1)
    scene.advance(100.0)
    assert {E1} == scene.open

    scene.revive(E1)
    scene.advance(20.0)

    assert ends(scene) == {"held_up": 1}
    assert set() == scene.open


def test_a_new_request_of_the_endpoint_in_the_room_makes_a_parcel_void() -> None:
    """A Success of the old request would be taken for one of the new: decode would read pages that nobody wrote."""
    scene = standing()
    scene.die(E1)
    scene.gives(1, E1)
    scene.gives(2, E1)
    scene.opened(1, 2)
    scene.handshake(1, 2, E1)

    scene.revive(E1)

    assert rooms(scene) == [2]
    assert ends(scene) == {"superseded": 1}


def test_a_handshake_that_came_before_the_parcel_makes_nothing_void() -> None:
    """A replay brings handshakes after the parcels, with the numbers of the first time."""
    scene = standing()
    shaken = scene.handshake(9, 1, E1)
    scene.die(E1)
    scene.gives(9, E1)

    scene.tell(shaken)

    assert ends(scene) == {}


def test_a_restarted_decode_is_not_told_of_requests_that_it_has_lost() -> None:
    scene = standing()
    scene.join("q")
    scene.registered(E1, process="q")
    scene.die(E1)
    scene.gives(1, E1)
    scene.gives(7, E1, process="q")
    scene.registered(E1, session="new")
    scene.gives(2, E1, session="new")
    scene.gives(3, E1, session="s")  # replayed from before

    scene.revive(E1)

    assert rooms(scene) == [7, 2]
    assert ends(scene) == {"restarted": 2}


def test_news_of_an_endpoint_without_parcels_is_no_news() -> None:
    scene = standing()
    scene.gives(1, E1)

    scene.registered(E2, session="new")
    scene.notifier.endpoint_up(E3, scene.now)
    scene.notifier.endpoint_down(E3, scene.now)

    assert ends(scene) == {}


def test_a_parcel_expires_with_decodes_own_timeout() -> None:
    scene = standing()
    scene.die(E1)
    scene.gives(1, E1)

    scene.advance(TTL_S + 1)
    scene.revive(E1)

    assert rooms(scene) == []
    assert ends(scene) == {"expired": 1}


def test_the_same_parcel_again_is_taken_once() -> None:
    """The stream broke and the rank has said it all again."""
    scene = standing()
    scene.die(E1)
    given = scene.gives(1, E1)
    scene.tell(given)

    scene.revive(E1)

    assert rooms(scene) == [1]
    assert scene.notifier.stats.parcels_taken == 1


def test_a_successor_takes_what_its_predecessor_had_not_ended() -> None:
    scene = standing()
    given = scene.gives(1, E1)
    successor = standing()

    successor.tell(replace(given, seq=successor.seq(), take_by_s=successor.now + 0.15))

    assert rooms(successor) == [1]


def test_parcels_of_a_dead_rank_are_still_handed_off() -> None:
    """What it has transferred is there: decode can go on with it. And a Success is never followed by its death."""
    scene = standing()
    scene.die(E1)
    scene.opened(1, 1)
    scene.succeeded(1, 1)
    scene.gives(1, E1)
    scene.leave()
    scene.process_dies()
    scene.advance(1.0)

    scene.revive(E1)

    assert rooms(scene) == [1]
    assert scene.told() == []


def test_a_full_lane_drops_what_was_handed_off_before_what_was_not() -> None:
    scene = standing(parcels=ParcelLimits(per_endpoint=3))
    for room in (1, 2):
        scene.gives(room, E1)
    scene.full.add(E1)
    for room in (3, 4, 5, 6):
        scene.gives(room, E1)
    rooms(scene)

    scene.full.clear()
    scene.advance(1.0)

    assert rooms(scene) == [4, 5, 6]
    assert ends(scene) == {"dropped": 3}


@pytest.mark.parametrize("limits", [ParcelLimits(total=2), ParcelLimits(bytes_total=2 * len(b"".join(SUCCESS)))])
def test_a_full_table_drops_the_oldest(limits: ParcelLimits) -> None:
    scene = standing(parcels=limits)
    for room in (1, 2, 3):
        scene.gives(room, E2 if room == 1 else E1)

    assert ends(scene) == {"dropped": 1}
    assert len(scene.notifier.parcels) == 2


def test_a_table_that_holds_one_parcel_takes_the_next_in_its_place() -> None:
    scene = standing(parcels=ParcelLimits(total=1))
    scene.die(E1)
    scene.gives(1, E1)
    scene.gives(2, E1)

    scene.revive(E1)

    assert rooms(scene) == [2]


def test_the_sidecar_stays_while_it_has_parcels() -> None:
    scene = Scene(idle_exit_s=5.0)
    scene.join()
    scene.registered(E1)
    scene.die(E1)
    scene.gives(1, E1)
    scene.goodbye()
    scene.leave()
    scene.advance(20.0)
    assert Retire() not in scene.others

    scene.revive(E1)
    scene.advance(20.0)

    assert Retire() in scene.others


def test_at_the_end_what_is_pending_is_tried_at_once() -> None:
    scene = standing()
    scene.full.add(E1)
    scene.gives(1, E1)
    assert not scene.notifier.is_idle
    scene.full.clear()

    scene.notifier.begin_shutdown(scene.now)
    scene.pump()

    assert rooms(scene) == [1]
    assert scene.notifier.is_idle


def test_the_word_about_many_ends_fits_a_frame_of_the_stream() -> None:
    scene = standing()
    scene.die(E1)
    for room in range(ENDED_LIMIT + 1):
        scene.gives(room, E1)
    scene.advance(0.1)
    before = len(reports(scene))

    scene.registered(E1, session="new")
    scene.advance(0.1)

    taken = [reply for reply in reports(scene)[before:] if isinstance(reply, ParcelsTaken)]
    assert [len(reply.ended) for reply in taken] == [ENDED_LIMIT, 1]


def test_an_outcome_for_what_has_ended_meanwhile_changes_nothing() -> None:
    scene = standing()
    scene.die(E1)
    scene.gives(1, E1)
    scene.gives(2, E1)
    scene.notifier.endpoint_up(E1, scene.now)
    [offered] = [action for action in scene.notifier.take_actions() if isinstance(action, SendParcels)]
    scene.handshake(1, 2, E1)
    scene.notifier.parcels_attempted(offered, 2, scene.now)
    scene.handshake(2, 2, E1)

    scene.notifier.parcels_attempted(offered, 1, scene.now)

    assert ends(scene) == {"superseded": 2}
    assert scene.notifier.stats.parcels_handed_off == 1
    assert repr(scene.notifier.parcels) == "<Parcels 0 to 0 endpoints>"


def test_a_parcel_that_is_void_before_its_turn_is_not_offered() -> None:
    scene = standing()
    given = ParcelGiven(scene.seq(), 5, E1, "s", SUCCESS, START + 0.15)
    shaken = DecodeHandshake(scene.seq(), 5, 2, E1, "s")

    scene.notifier.receive(scene.streams["p"], [given, shaken], scene.now)
    scene.pump()

    assert scene.carried == []
    assert ends(scene) == {"superseded": 1}


def test_a_parcel_that_is_void_before_it_is_tried_again_is_forgotten() -> None:
    scene = standing()
    scene.gives(1, E1)
    scene.full.add(E1)
    scene.gives(2, E1)
    scene.handshake(2, 2, E1)
    scene.full.clear()

    scene.advance(10.0)

    assert rooms(scene) == [1]
    assert ends(scene) == {"superseded": 1, "held_up": 1}


def test_two_parcels_of_one_request_that_come_together_go_together() -> None:
    scene = standing()
    status, ack = (
        ParcelGiven(scene.seq(), 5, E1, "s", frames, START + 0.15)
        for frames in ((b"5", b"0", b"0"), (b"ABORT_ACK", b"5"))
    )

    scene.notifier.receive(scene.streams["p"], [status, ack], scene.now)
    scene.pump()
    assert [status.frames, ack.frames] == [frames for _, frames in scene.carried]

    scene.handshake(5, 2, E1)
    assert ends(scene) == {"superseded": 2}
