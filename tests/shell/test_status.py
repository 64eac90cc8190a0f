"""What `status` says of each decode endpoint: what it takes, and why that is believed."""

from typing import Any

import pytest

from sidecar.shell.status import Bounds, status_document
from tests.core.scene import E1, Scene, hello

BOUNDS = Bounds(descriptors=1, connections=1, streams=1, records=1, settle_after_s=1.0, idle_close_s=1.0)


def endpoint(scene: Scene) -> dict[str, Any]:
    [found] = status_document(scene.notifier, now=scene.now, bounds=BOUNDS, version="1")["endpoints"]
    return {name: found[name] for name in ("takes", "holds_pages", "believed_by", "is_in_doubt")}


@pytest.mark.parametrize(
    ("frames", "decode_half", "decode_sglang", "takes", "holds_pages", "believed_by"),
    [
        (20, "", "", "cause", True, "registered with 20 frames: 0.5.21 or newer"),
        (18, "", "", "bare", False, "registered with 18 frames: 0.5.17 or newer"),
        (77, "", "", "bare", False, "registered with 77 frames: nothing known"),
        (18, "", "0.5.20", "cause", False, "decode_sglang 0.5.20; registered with 18 frames"),
        (18, "0.5.18", "0.5.23", "status", False, "its decode half, in sglang 0.5.18; registered with 18 frames"),
        (19, "x", "", "status", False, "its decode half, in sglang 0.5.19; registered with 19 frames"),
        (9, "x", "", "status", False, "its decode half, in sglang of an unknown version; registered with 9 frames"),
        (0, "", "", "bare", False, "no registration heard: nothing known"),
    ],
)
def test_what_an_endpoint_takes_and_why_that_is_believed(
    frames: int, decode_half: str, decode_sglang: str, takes: str, holds_pages: bool, believed_by: str
) -> None:
    scene = Scene(decode_sglang=decode_sglang)
    scene.join(said=hello())
    if frames:
        scene.registered(E1, frames=frames, decode_half=decode_half)
    scene.handshake(1, 1, E1)

    assert endpoint(scene) == {
        "takes": takes,
        "holds_pages": holds_pages,
        "believed_by": believed_by,
        "is_in_doubt": False,
    }


def test_it_is_in_doubt_from_a_lost_connection_to_the_next_word_of_it() -> None:
    scene = Scene()
    scene.join()
    scene.registered(E1, frames=20)
    scene.handshake(1, 1, E1)
    scene.advance(1.0)
    scene.die(E1)
    scene.revive(E1)
    doubts = [endpoint(scene)["is_in_doubt"]]
    scene.handshake(2, 2, E1)

    assert [*doubts, endpoint(scene)["is_in_doubt"]] == [True, False]
