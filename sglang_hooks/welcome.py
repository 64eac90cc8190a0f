"""The first word of a sidecar on a new stream."""

import socket

from sidecar.errors import WireError
from sidecar.model import PROTOCOL, Refusal, Reply, Welcome
from sidecar.wire.ingress import FrameReader

WELCOME_LIMIT_S = 5.0
RECEIVE_BYTES = 65_536


class StreamRefusedError(WireError):
    """The sidecar has said why it does not serve this stream."""


def await_welcome(stream: socket.socket, reader: FrameReader[Reply]) -> tuple[Welcome, list[Reply]]:
    """With the replies that came right behind it. Raises WireError, or OSError by the socket's own time limit."""
    while True:
        received = stream.recv(RECEIVE_BYTES)
        if not received:
            raise WireError("the sidecar closed the stream before its welcome")
        replies = list(reader.feed(received))
        match replies:
            case [Welcome(protocol=protocol) as welcome, *rest]:
                if protocol != PROTOCOL:
                    raise WireError(
                        f"the sidecar speaks protocol {protocol}, this plugin {PROTOCOL}: upgrade the older one"
                    )
                return welcome, rest
            case [Refusal(reason=reason), *_]:
                raise StreamRefusedError(f"the sidecar refused: {reason}")
            case []:
                continue
            case _:
                raise WireError("the sidecar's first word was no welcome")
