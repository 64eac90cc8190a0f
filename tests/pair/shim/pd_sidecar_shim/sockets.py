"""Every message that arrives at a rank's socket, and every one that prefill itself sends to decode endpoints."""

from collections.abc import Sequence
from typing import Any

import zmq
from sglang.srt.disaggregation.common import conn
from sglang.srt.utils import network

from pd_sidecar_shim.journal import ROLE, note
from pd_sidecar_shim.patching import wrap

GUARDS = ("NixlMsgGuard", "MoriMsgGuard", "KV_STATUS")


def apply() -> None:
    wrap(network, "get_zmq_socket_on_host", _make_socket)
    conn.get_zmq_socket_on_host = network.get_zmq_socket_on_host  # one object in both places, as before
    wrap(conn.CommonKVManager, "_send_multipart_locked", _send)


def _make_socket(original: Any, *args: Any, **kwargs: Any) -> Any:
    port, socket = original(*args, **kwargs)
    if socket.socket_type == zmq.PULL:
        receive = socket.recv_multipart

        def recv_multipart(*args: Any, **kwargs: Any) -> Any:
            frames = receive(*args, **kwargs)
            note("in", port=port, **describe([bytes(frame) for frame in frames]))
            return frames

        socket.recv_multipart = recv_multipart
        note("bound", port=port)
    return port, socket


def _send(original: Any, manager: Any, endpoint: str, parts: Sequence[bytes], *args: Any, **kwargs: Any) -> Any:
    note("out", endpoint=endpoint, **describe(parts))
    return original(manager, endpoint, parts, *args, **kwargs)


def describe(frames: Sequence[bytes]) -> dict[str, Any]:
    """Tag, room and status where they are plain text; the frames themselves in hex."""
    words = [frame.decode("ascii", "replace") if len(frame) <= 64 else "" for frame in frames[:4]]
    if words and words[0] in GUARDS:
        words = words[1:]
    words += ["", ""]
    fields: dict[str, Any] = {"tag": words[0], "frames": [bytes(frame).hex() for frame in frames]}
    if words[0] == "None":
        fields["tag"] = "REGISTER"
    elif words[0].isdigit() and ROLE == "prefill" and len(frames) > 4:
        fields |= {"tag": "HANDSHAKE", "room": int(words[0])}
    elif words[0].isdigit():
        fields |= {"tag": "STATUS", "room": int(words[0]), "status": words[1]}
    elif words[1].isdigit():
        fields["room"] = int(words[1])
    return fields
