import pytest

from sglang_hooks.messages.pushed import endpoint_of, room_of
from sidecar.model import ROOM_LIMIT, DecodeEndpoint


@pytest.mark.parametrize(
    ("frames", "room"),
    [
        ([b"7", b"4", b"0"], 7),
        ([b"7", b"0", b"3", b"the cause"], 7),
        ([b"KV_STATUS", b"7", b"4", b"0"], 7),
        ([b"MoriMsgGuard", b"7", b"0", b"0", b"the cause"], 7),
        ([b"ABORT_ACK", b"7"], 7),
        ([b"ABORT_ACK", b"7", b"0", b"12"], 7),
        ([b"ABORT_ACK"], None),
        ([b"KV_STATUS", b"7", b"4"], None),
        ([b"AUX_DATA", b"7", b"0", b"0", b"\0\0\0\1", b"x"], None),
        ([b"CHUNK_READY", b"7", b"0", b"0", b"8", b"s", b"0"], None),
        ([b"%d" % ROOM_LIMIT, b"4", b"0"], None),
        ([b"1" * 20, b"4", b"0"], None),
        ([b"7", b"4"], None),
        ([], None),
    ],
)
def test_a_status_and_an_abort_ack_name_their_room_and_nothing_else_does(frames: list[bytes], room: int | None) -> None:
    assert room == room_of(frames)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("tcp://10.0.0.1:7001", DecodeEndpoint("10.0.0.1", 7001)),
        ("tcp://[::1]:7001", DecodeEndpoint("::1", 7001)),
        ("tcp://d.example:7001", DecodeEndpoint("d.example", 7001)),
        ("ipc://x:7001", None),
        ("tcp://10.0.0.1", None),
        ("tcp://:7001", None),
        ("tcp://10.0.0.1:x", None),
        ("tcp://10.0.0.1:123456", None),
    ],
)
def test_the_endpoint_is_what_decode_registered_with(url: str, endpoint: DecodeEndpoint | None) -> None:
    assert endpoint == endpoint_of(url)
