"""Frames between the hooks and the sidecar: a big-endian length of four bytes, then one msgpack value of
`sidecar.model`.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from sidecar.errors import WireError
from sidecar.model import HandedOffBatch, Reply, SettledBatch, SingleReply, Upward

FRAME_LIMIT_BYTES = 64 * 1024
"""Longest frame either side takes. The longest real one is a hello with its hook verdicts, below 4 KiB."""

_HEADER = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode

Message = TypeVar("Message")


def encode(message: Upward | Reply) -> bytes:
    body = _encode(message)
    return _HEADER.pack(len(body)) + body


def encode_all(messages: Iterable[Upward | Reply]) -> bytes:
    return b"".join([encode(message) for message in messages])


class FrameReader(Generic[Message]):
    """Cuts a stream into messages. After a WireError the stream is out of step and must be closed."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[Message]") -> None:
        self._decode = decoder.decode
        self._part = b""

    def feed(self, received: bytes) -> Iterator[Message]:
        """Yields every message that is complete. Raises WireError for an oversized frame or one that is no known
        message.
        """
        messages, error = self.cut(received)
        yield from messages
        if error is not None:
            raise error

    def cut(self, received: bytes) -> tuple[list[Message], WireError | None]:
        """Every message that is complete, and why there are no more: the same as `feed`, at less cost for many."""
        stream = self._part + received if self._part else received
        messages: list[Message] = []
        error, decode, unpack = None, self._decode, _HEADER.unpack_from
        start, body, available = 0, _HEADER.size, len(stream)
        try:
            while body <= available:
                (length,) = unpack(stream, start)
                if length > FRAME_LIMIT_BYTES:
                    error = WireError(f"a frame of {length} bytes is announced; the limit is {FRAME_LIMIT_BYTES}")
                    break
                end = body + length
                if end > available:
                    break
                messages.append(decode(stream[body:end]))
                start, body = end, end + _HEADER.size
        except (msgspec.DecodeError, RecursionError) as junk:
            error = WireError(f"not a message of this protocol: {junk}")
        self._part = stream[start:]
        return messages, error


def upward_reader() -> FrameReader[Upward]:
    """For the sidecar: hellos and facts."""
    return FrameReader(msgspec.msgpack.Decoder(Upward))


def singly(replies: Iterable[Reply]) -> Iterator[SingleReply]:
    """What is said of many handshakes at once, said of each."""
    for reply in replies:
        if isinstance(reply, HandedOffBatch | SettledBatch):
            yield from reply.each()
        else:
            yield reply


def reply_reader() -> FrameReader[Reply]:
    """For the hooks."""
    return FrameReader(msgspec.msgpack.Decoder(Reply))
