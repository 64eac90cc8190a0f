"""Frames between the hooks and the sidecar: a big-endian length of four bytes, then one msgpack value of
`sidecar.model`.
"""

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from sidecar.errors import WireError
from sidecar.model import Reply, Upward

FRAME_LIMIT_BYTES = 64 * 1024
"""Longest frame either side takes. The longest real one is a hello with its hook verdicts, below 4 KiB."""

_HEADER = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()

Message = TypeVar("Message")


def encode(message: Upward | Reply) -> bytes:
    body = _encoder.encode(message)
    return _HEADER.pack(len(body)) + body


class FrameReader(Generic[Message]):
    """Cuts a stream into messages. After a WireError the stream is out of step and must be closed."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[Message]") -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[Message]:
        """Yields every message that is complete. Raises WireError for an oversized frame or one that is no known
        message.
        """
        self._pending += received
        start = 0
        try:
            while (end := self._end_of_frame(start)) is not None:
                body = memoryview(self._pending)[start + _HEADER.size : end]
                try:
                    yield self._decode(body)
                finally:
                    body.release()
                start = end
        finally:
            del self._pending[:start]

    def _end_of_frame(self, start: int) -> int | None:
        if len(self._pending) - start < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._pending, start)
        if length > FRAME_LIMIT_BYTES:
            raise WireError(f"a frame of {length} bytes is announced; the limit is {FRAME_LIMIT_BYTES}")
        end = start + _HEADER.size + int(length)
        return end if len(self._pending) >= end else None

    def _decode(self, body: memoryview) -> Message:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"not a message of this protocol: {error}") from error


def upward_reader() -> FrameReader[Upward]:
    """For the sidecar: hellos and facts."""
    return FrameReader(msgspec.msgpack.Decoder(Upward))


def reply_reader() -> FrameReader[Reply]:
    """For the hooks."""
    return FrameReader(msgspec.msgpack.Decoder(Reply))
