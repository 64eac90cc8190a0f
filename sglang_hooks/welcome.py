"""The first word of a sidecar on a new stream."""

import socket

from sglang_hooks.doorbell import Doorbell, receive
from sidecar.errors import WireError
from sidecar.model import PROTOCOL, Refusal, Reply, SingleReply, Welcome
from sidecar.wire.ingress import FrameReader, singly

WELCOME_LIMIT_S = 5.0
RECEIVE_BYTES = 65_536


class StreamRefusedError(WireError):
    """The sidecar has said why it does not serve this stream."""


class DoorbellMissingError(WireError):
    """The sidecar waits for a doorbell whose descriptor has not come through."""


def await_welcome(
    stream: socket.socket, reader: FrameReader[Reply]
) -> tuple[Welcome, Doorbell | None, list[SingleReply]]:
    """With the replies that came right behind it. Raises WireError, or OSError by the socket's own time limit."""
    doorbells: list[Doorbell] = []
    try:
        return _await(stream, reader, doorbells)
    except (OSError, WireError):
        for doorbell in doorbells:
            doorbell.close()
        raise


def _await(
    stream: socket.socket, reader: FrameReader[Reply], doorbells: list[Doorbell]
) -> tuple[Welcome, Doorbell | None, list[SingleReply]]:
    replies: list[SingleReply] = []
    while not replies:
        received, doorbell = receive(stream, RECEIVE_BYTES)
        if doorbell is not None:
            doorbells.append(doorbell)
        if not received:
            raise WireError("the sidecar closed the stream before its welcome")
        replies = list(singly(reader.feed(received)))
    welcome, rest = _first_word(replies)
    if welcome.doorbell and not doorbells:
        raise DoorbellMissingError("the sidecar's doorbell got lost: what stands between does not pass it on")
    doorbell = doorbells[0] if doorbells else None
    if welcome.shares_memory and (doorbell is None or doorbell.write is None):
        raise DoorbellMissingError("the sidecar's memory got lost: what stands between does not pass it on")
    return welcome, doorbell, rest


def _first_word(replies: list[SingleReply]) -> tuple[Welcome, list[SingleReply]]:
    match replies:
        case [Welcome(protocol=protocol) as welcome, *rest]:
            if protocol != PROTOCOL:
                raise WireError(
                    f"the sidecar speaks protocol {protocol}, this plugin {PROTOCOL}: upgrade the older one"
                )
            return welcome, rest
        case [Refusal(reason=reason), *_]:
            raise StreamRefusedError(f"the sidecar refused: {reason}")
        case _:
            raise WireError("the sidecar's first word was no welcome")
