"""What `trace` says: for each state of an endpoint the sentence that answers "why did this decode hang, or not?"."""

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.core.endpoint_queue import OwedNotice
from sidecar.core.keys import Outcome
from sidecar.core.limits import OutboxLimits, RoomLimits
from sidecar.model import RoomConcluded, TerminalStatus
from sidecar.shell.story import _ENDS, room_document
from tests.core.scene import E1, E2, START, TTL_S, Scene, hello

WALL_S = 1_800_000_000.0


def life(scene: Scene, room: int = 1) -> dict[str, Any]:
    [found] = room_document(scene.notifier, room, now=scene.now, wall_s=WALL_S + scene.now - START)["lives"]
    return dict(found)


def words(scene: Scene, room: int = 1) -> str:
    [endpoint] = life(scene, room)["endpoints"]
    return str(endpoint["in_words"])


def joined(**limits: object) -> Scene:
    scene = Scene(**limits)  # type: ignore[arg-type]
    scene.join()
    return scene


def shaken(scene: Scene, *, opened: bool = True) -> Scene:
    if opened:
        scene.opened(1, 1)
    scene.handshake(1, 1, E1)
    return scene


def held_up(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1)
    scene.advance(5.0)


def unreachable(scene: Scene) -> None:
    scene.die(E1)
    shaken(scene)
    scene.failed(1, 1)
    scene.advance(10.0)


def frozen(scene: Scene) -> None:
    scene.full.add(E1)
    shaken(scene)
    scene.failed(1, 1)


def expired_untold(scene: Scene) -> None:
    unreachable(scene)
    scene.advance(TTL_S - 11)
    scene.notifier.outbox.end(next(iter(_owed(scene))).key, Outcome.EXPIRED, scene.now)
    scene.advance(0.0)


def _owed(scene: Scene) -> list[OwedNotice]:
    return [owed for queue in scene.notifier.outbox.queues() for owed in queue.notices()]


def restarted(scene: Scene) -> None:
    unreachable(scene)
    scene.registered(E1, "another session")


def superseded(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1)
    scene.opened(1, 2)


def acknowledged(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1)
    scene.acknowledged(1, 1, E1)


def aborted_after(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1)
    scene.aborted(1, 1, E1)


def aborted_untold(scene: Scene) -> None:
    unreachable(scene)
    scene.aborted(1, 1, E1)


def aborted_before(scene: Scene) -> None:
    shaken(scene)
    scene.aborted(1, 1, E1)


def aborted_before_the_end(scene: Scene) -> None:
    aborted_before(scene)
    scene.failed(1, 1)


def undrained(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1, drained=False)


def undrained_told(scene: Scene) -> None:
    scene.registered(E1, frames=20)
    undrained(scene)
    scene.aborted(1, 1, E1)


def undrained_settled(scene: Scene) -> None:
    shaken(scene)
    scene.aborted(1, 1, E1)
    scene.failed(1, 1, drained=False)


def told_in_full(scene: Scene) -> None:
    scene.registered(E1, decode_half="0.5.18")
    shaken(scene)
    scene.failed(1, 1)


def succeeded(scene: Scene) -> None:
    shaken(scene)
    scene.succeeded(1, 1)


def told_again(scene: Scene) -> None:
    shaken(scene)
    scene.failed(1, 1)
    scene.die(E1)
    scene.revive(E1)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (lambda scene: shaken(scene, opened=False), "waits: prefill has not taken the request"),
        (shaken, "waits: prefill serves the request"),
        (held_up, "told 0.0 ms after it could be; the connection stayed up, so it counts as arrived"),
        (unreachable, "not told; owed: no connection to the endpoint ("),
        (frozen, "not told; owed: the connection takes no more (1 attempts refused, goes on for 300 s)"),
        (expired_untold, "not told; it could not be reached until its own timeout: it hung"),
        (restarted, "not told; it has restarted since, nobody waits there"),
        (acknowledged, "told 0.0 ms after it could be; it acknowledged"),
        (aborted_after, "told 0.0 ms after it could be; its own ABORT came back: it knows"),
        (aborted_untold, "not told; it gave the request up itself"),
        (aborted_before, "gave the request up itself: nothing to tell"),
        (aborted_before_the_end, "nothing owed: it was told before, gave up itself, or has restarted"),
        (
            undrained,
            "not told: prefill may still be writing to its memory, which it is not known to hold; its own time",
        ),
        (undrained_told, "told the cause 0.0 ms after it could be; its own ABORT came back: it knows"),
        (undrained_settled, "nothing owed: it was told before, gave up itself, or has restarted"),
        (told_in_full, "told cause and status 0.0 ms after it could be; waits for evidence that it arrived"),
        (succeeded, "the transfer succeeded: decode has what it waited for"),
        (told_again, "told 0.0 ms after it could be, 2 times in all; waits for evidence that it arrived"),
    ],
)
def test_each_endpoint_is_told_of_in_a_sentence(way: Callable[[Scene], object], said: str) -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    way(scene)

    assert words(scene).startswith(said)


def test_a_superseded_notice_says_so() -> None:
    scene = joined()
    superseded(scene)
    first, _ = room_document(scene.notifier, 1, now=scene.now, wall_s=WALL_S)["lives"]

    assert first["endpoints"][0]["in_words"].endswith("the room is in use again, so it is not told any more")


def test_a_backend_without_a_form_says_so() -> None:
    scene = Scene()
    scene.join(said=hello(backend="fake"))
    shaken(scene)
    scene.failed(1, 1)

    assert words(scene) == "not told: no status message is known that its transfer backend takes"


def test_every_outcome_has_its_words() -> None:
    assert set(_ENDS) == set(Outcome)


def test_the_events_are_in_order_with_calendar_and_age() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    scene.opened(1, 1)
    scene.advance(1.0)
    scene.handshake(1, 1, E1)
    scene.die(E1)
    scene.advance(1.0)
    scene.failed(1, 1)
    scene.advance(2.0)
    scene.revive(E1)
    scene.advance(10.0)
    events = life(scene)["events"]

    assert [event["event"].partition(",")[0] for event in events] == [
        "prefill has the request",
        "shook hands",
        "given up: drained",
        "refused an attempt",
        "first hand-off",
        "over: held_up",
    ]
    assert [event["endpoint"] for event in events] == [None, "127.0.0.1:7001", None, *["127.0.0.1:7001"] * 3]
    assert [round(event["ago_s"]) for event in events] == [14, 13, 12, 11, 10, 5] or events[3]["ago_s"] > 10
    assert events[0]["at"] == "2027-01-15T08:00:00.000+00:00"


def test_it_can_be_told_after_the_notice_has_ended_and_until_the_record_goes() -> None:
    scene = joined(outbox=OutboxLimits(settle_after_s=5.0))
    held_up(scene)
    scene.advance(TTL_S - 6)
    assert words(scene).endswith("so it counts as arrived")

    scene.advance(2.0)
    assert room_document(scene.notifier, 1, now=scene.now, wall_s=WALL_S)["lives"] == []


def test_a_life_says_whose_it_is_and_how_it_ended() -> None:
    scene = joined(rooms=RoomLimits(records=5))
    scene.join("q", said=hello("q", prefill_rank=1))
    for process in ("p", "q"):
        scene.handshake(1, 1, E2, process=process)
        scene.failed(1, 1, cause="Aborted by AbortReq.", process=process)
    lives = room_document(scene.notifier, 1, now=scene.now, wall_s=WALL_S)["lives"]

    assert [(one["prefill_rank"], one["engine"], one["cause"]) for one in lives] == [
        (0, "engine", "Aborted by AbortReq."),
        (1, "engine", "Aborted by AbortReq."),
    ]
    assert lives[0]["forgotten_in_s"] == TTL_S


def test_the_form_and_the_status_are_shown() -> None:
    scene = joined()
    told_in_full(scene)
    scene.handshake(2, 2, E1)
    scene.die(E1)
    scene.failed(2, 2, http_status=503)

    assert (life(scene)["http_status"], life(scene)["endpoints"][0]["form"]) == (None, "status")
    assert (life(scene, 2)["http_status"], life(scene, 2)["endpoints"][0]["form"]) == (503, None)


def test_an_end_that_had_to_drain_says_how_long_that_took() -> None:
    scene = joined()
    shaken(scene)
    scene.advance(3.0)
    said = RoomConcluded(9, 1, 1, TerminalStatus.FAILED, "Aborted by AbortReq.", True, scene.now, scene.now - 1.25)
    scene.tell(said)
    found = life(scene)

    assert found["end_took_s"] == 1.25
    assert [event["event"].partition(":")[0] for event in found["events"]][-3:] == [
        "prefill began to give it up",
        "given up",
        "first hand-off",
    ]
