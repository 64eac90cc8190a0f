"""Single frames, read as sglang reads them. What it would raise over, and what would hurt it later, is `JunkError`."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from sglang_hooks.messages.values import Reason
from sidecar.model import DecodeEndpoint

FRAMES_LIMIT = 256
BYTES_LIMIT = 64 * 1024 * 1024
"""Of a message. The largest that decode sends are the page indices of one request, four bytes each."""

PEERS_REMEMBERED = 1_024
PEER_BYTES_LIMIT = 512
"""What names a decode rank comes with each of its messages: what is no longer than this is remembered once read."""

ADDRESS = re.compile(r"[0-9A-Za-z\[:][0-9A-Za-z.\-:%;\[\]_*]*")
"""Of a host, as libzmq takes it (`socket_base_t::connect_internal`). With any other one a later connect raises, in a
transfer worker, which ends."""


class JunkError(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def need(frames: Sequence[bytes], count: int) -> None:
    if len(frames) < count:
        raise JunkError(Reason.TOO_SHORT)


def bounded(frames: Sequence[bytes]) -> None:
    if len(frames) > FRAMES_LIMIT or sum(map(len, frames)) > BYTES_LIMIT:
        raise JunkError(Reason.OVERSIZED)


def text(frame: bytes) -> str:
    try:
        return frame.decode("ascii")
    except UnicodeDecodeError:
        raise JunkError(Reason.NOT_ASCII) from None


def number(frame: bytes) -> int:
    try:
        return int(frame)  # as of text, but for white space that only text has
    except ValueError:
        return _number_of(text(frame))


def _number_of(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise JunkError(Reason.MISMATCHED) from None


def is_number(frame: bytes) -> bool:
    try:
        number(frame)
    except JunkError:
        return False
    return True


def endpoint(host: bytes, port: bytes) -> DecodeEndpoint:
    return (_endpoint_once if len(host) + len(port) <= PEER_BYTES_LIMIT else _endpoint)(host, port)


def _endpoint(host: bytes, port: bytes) -> DecodeEndpoint:
    address, at = text(host), number(port)
    if not ADDRESS.fullmatch(address) or not 1 <= at <= 65_535:
        raise JunkError(Reason.MISMATCHED)
    return DecodeEndpoint(address, at)


_endpoint_once = lru_cache(PEERS_REMEMBERED)(_endpoint)


def sharding_session(frame: bytes) -> str:
    """Mooncake's: prefill's scheduler adds up the ports in them (`add_transfer_request`), and ends over one without."""
    return (_session_once if len(frame) <= PEER_BYTES_LIMIT else _session)(frame)


def _session(frame: bytes) -> str:
    session = text(frame)
    _, colon, port = session.rpartition(":")
    if not colon or not is_number(port.encode("ascii")):
        raise JunkError(Reason.MISMATCHED)
    return session


_session_once = lru_cache(PEERS_REMEMBERED)(_session)


def words(width: int) -> Callable[[bytes], None]:
    """A packed array of integers of `width` bytes."""

    def read(frame: bytes) -> None:
        if len(frame) % width:
            raise JunkError(Reason.MISMATCHED)

    return read


def lists(width: int) -> Callable[[bytes], None]:
    """Arrays of such integers: their number, their lengths, then they (sglang `unpack_int_lists`)."""
    read_words = words(width)

    def read(frame: bytes) -> None:
        if frame == b"":
            return
        start = 4 + 4 * int.from_bytes(frame[:4], "little")
        if len(frame) < max(start, 4):
            raise JunkError(Reason.MISMATCHED)
        for at in range(4, start, 4):
            length = int.from_bytes(frame[at : at + 4], "little")
            read_words(frame[start : start + length])
            start += length

    return read


def optional(frames: Sequence[bytes], index: int, read: Callable[[bytes], object]) -> None:
    """A field that sglang reads if it is there and not empty."""
    if len(frames) > index and frames[index] != b"":
        read(frames[index])
