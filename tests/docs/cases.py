"""What `pd-sidecar trace` says in the cases that an operator meets, on a clock that stands still: the blocks of
docs/troubleshooting.md.
"""

from collections.abc import Callable

import click
import msgspec

from sidecar.cli.client import TraceView
from sidecar.cli.show import trace_lines
from sidecar.core.lifeline import DEATH_CAUSE
from sidecar.model import DecodeEndpoint
from sidecar.shell.story import room_document
from tests.core.scene import START, Scene, hello

ROOM = 4711
FIRST, SECOND = DecodeEndpoint("10.0.0.7", 41003), DecodeEndpoint("10.0.0.8", 38211)
BEGAN_AT_S = 1_800_000_000.0
ABORTED = "Aborted by AbortReq."


def told() -> Scene:
    scene = _serving()
    _failed(scene)
    scene.advance(6.0)
    return scene


def unreachable() -> Scene:
    scene = _serving()
    scene.die(FIRST)
    _failed(scene)
    scene.advance(30.0)
    return scene


def frozen() -> Scene:
    scene = _serving()
    scene.full.add(FIRST)
    _failed(scene)
    scene.advance(2.0)
    return scene


def not_settled_yet() -> Scene:
    scene = _serving()
    _failed(scene)
    scene.advance(1.0)
    return scene


def decode_gave_up() -> Scene:
    scene = _serving()
    scene.aborted(ROOM, 1, FIRST)
    scene.advance(0.004)
    _failed(scene)
    scene.advance(2.0)
    return scene


def late() -> Scene:
    scene = _joined()
    scene.opened(ROOM, 1)
    scene.advance(0.2)
    _failed(scene)
    scene.advance(1.3)
    scene.handshake(ROOM, 1, FIRST)
    scene.advance(6.0)
    return scene


def undrained() -> Scene:
    scene = _serving()
    scene.advance(30.0)
    scene.failed(ROOM, 1, cause=ABORTED, http_status=499, drained=False)
    scene.advance(1.0)
    return scene


def served() -> Scene:
    scene = _serving()
    scene.advance(45.0)
    return scene


def not_taken() -> Scene:
    scene = _joined()
    scene.handshake(ROOM, 1, FIRST)
    scene.advance(45.0)
    return scene


def succeeded() -> Scene:
    scene = _serving()
    scene.advance(0.8)
    scene.succeeded(ROOM, 1)
    scene.advance(4.0)
    return scene


def restarted() -> Scene:
    scene = _serving()
    scene.die(FIRST)
    _failed(scene)
    scene.advance(8.0)
    scene.registered(FIRST, "another")
    scene.advance(1.0)
    return scene


def used_again() -> Scene:
    scene = _serving()
    _failed(scene)
    scene.advance(0.5)
    scene.opened(ROOM, 2)
    scene.handshake(ROOM, 2, SECOND)
    scene.advance(2.0)
    return scene


def rank_died() -> Scene:
    scene = _serving()
    scene.advance(3.0)
    scene.leave("p")
    scene.process_dies("p")
    scene.advance(6.0)
    assert DEATH_CAUSE in trace_of(scene)
    return scene


def unknown() -> Scene:
    return _joined()


CASES: dict[str, Callable[[], Scene]] = {
    case.__name__.replace("_", "-"): case
    for case in (
        told,
        not_settled_yet,
        unreachable,
        frozen,
        late,
        decode_gave_up,
        undrained,
        served,
        not_taken,
        succeeded,
        restarted,
        used_again,
        rank_died,
        unknown,
    )
}


def trace_of(scene: Scene) -> str:
    """What the command prints, by the way that it goes: a document, its bytes, lines."""
    wall_s = BEGAN_AT_S + scene.now - START
    document = msgspec.json.encode(room_document(scene.notifier, ROOM, now=scene.now, wall_s=wall_s))
    lines = trace_lines(msgspec.json.decode(document, type=TraceView))
    return "\n".join(click.unstyle(line) for line in lines)


def _joined() -> Scene:
    scene = Scene()
    scene.alive |= {FIRST, SECOND}
    scene.join("p", hello("p", engine="10.0.0.3:8998"))
    return scene


def _serving() -> Scene:
    """Prefill has the request, and a decode endpoint waits for it."""
    scene = _joined()
    scene.opened(ROOM, 1)
    scene.advance(0.012)
    scene.handshake(ROOM, 1, FIRST)
    scene.advance(2.5)
    return scene


def _failed(scene: Scene) -> None:
    scene.failed(ROOM, 1, cause=ABORTED, http_status=499)
