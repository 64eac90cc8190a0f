"""What prefill's bootstrap thread can get, in sglang 0.5.18 to 0.5.23.

What is checked are the fields that every one of these versions reads. Further frames pass: a newer decode sends more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sglang_hooks.messages.fields import (
    JunkError,
    bounded,
    endpoint,
    lists,
    need,
    number,
    optional,
    sharding_session,
    text,
    words,
)
from sglang_hooks.messages.values import (
    Abort,
    Family,
    Junk,
    Metadata,
    Other,
    PrefillMessage,
    Reason,
    Registration,
    Watermark,
)
from sidecar.errors import WireError
from sidecar.model import ROOM_LIMIT
from sidecar.wire.decode_half import acknowledged_room, announced

words4, words8, lists4, lists8 = words(4), words(8), lists(4), lists(8)

ABORT = b"ABORT"
BOOTSTRAP = b"BOOTSTRAP"
NO_ROOM = b"None"
STAGING_RSP = b"STAGING_RSP"
WATERMARK = b"WATERMARK"

GUARDS = {Family.NIXL: b"NixlMsgGuard", Family.MORI: b"MoriMsgGuard"}
"""First frame of what is neither an abort nor of the staging buffers."""

STAGING_CHUNKS = 2**20
"""Stock makes a list as long as the chunk's index says."""


@dataclass(frozen=True, slots=True)
class PrefillStock:
    """What this sglang's bootstrap thread takes. `reads_bootstrap`: prefill allocates late and takes BOOTSTRAP.

    `reads_short_abort`: an ABORT without an address is read, and not the thread's end.
    """

    family: Family
    reads_bootstrap: bool = False
    reads_short_abort: bool = False


def read_for_prefill(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    """Never raises. Anything that is no junk is taken by stock."""
    try:
        bounded(frames)
        need(frames, 1)
        by_tag = TAGGED.get(frames[0])
        if by_tag is not None:
            return by_tag(frames, stock)
        guard = GUARDS.get(stock.family)
        if guard is None:
            return _untagged(frames, frames, stock.family)
        if frames[0] == guard:
            need(frames, 2)
            return _untagged(frames[1:], frames, stock.family)
        return _unknown(frames, stock)
    except JunkError as junk:
        return Junk(junk.reason)


def _unknown(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    """Mori's thread stands what it does not know, and a newer one may know it."""
    if stock.family is Family.MORI:
        return Other()
    text(frames[0])
    raise JunkError(Reason.UNKNOWN_TAG)


# -- with a tag


def _abort(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    need(frames, 2)
    room = number(frames[1])
    stands_anything = stock.reads_short_abort or stock.family is not Family.MOONCAKE
    if len(frames) < 4 and stands_anything:
        return _of_room(room, Abort(room, None))
    need(frames, 4)
    try:
        decode = endpoint(frames[2], frames[3])
    except JunkError:
        if stands_anything:
            return _of_room(room, Abort(room, None))
        raise
    return _of_room(room, Abort(room, decode))


def _bootstrap(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    if not stock.reads_bootstrap:
        return _unknown(frames, stock)
    need(frames, 4)
    number(frames[1])
    endpoint(frames[2], frames[3])
    return Other()


def _watermark(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    if stock.family is Family.MORI:
        return Other()
    need(frames, 3)
    for index in (1, 2):
        number(frames[index])
    optional(frames, 3, text)
    return Watermark() if stock.family is Family.MOONCAKE else Other()


def _staging_rsp(frames: Sequence[bytes], stock: PrefillStock) -> PrefillMessage:
    if stock.family is Family.MORI:
        return Other()
    need(frames, 7)
    numbers = [number(frame) for frame in frames[1:6]]
    text(frames[6])
    if not 0 <= numbers[1] < STAGING_CHUNKS:
        raise JunkError(Reason.MISMATCHED)
    return Other()


TAGGED: Mapping[bytes, Callable[[Sequence[bytes], PrefillStock], PrefillMessage]] = {
    ABORT: _abort,
    BOOTSTRAP: _bootstrap,
    STAGING_RSP: _staging_rsp,
    WATERMARK: _watermark,
}


# -- registrations and metadata


def _untagged(payload: Sequence[bytes], frames: Sequence[bytes], family: Family) -> PrefillMessage:
    """`payload`: the frames behind the guard, if the family has one."""
    if payload[0] == NO_ROOM:
        return _registration(payload, frames, family)
    try:
        room = number(payload[0])
    except JunkError:
        text(payload[0])
        raise JunkError(Reason.UNKNOWN_TAG) from None
    return METADATA[family](payload, room)


def _registration(payload: Sequence[bytes], frames: Sequence[bytes], family: Family) -> PrefillMessage:
    session = REGISTRATIONS[family](payload)
    decode = endpoint(payload[1], payload[2])
    try:
        room = acknowledged_room(frames)
        announcement = announced(frames)
    except WireError:
        raise JunkError(Reason.MISMATCHED) from None
    if announcement is not None:
        return Registration(decode, session, announcement.frames, announcement.decode_half)
    return Registration(decode, session, len(frames), acknowledged=room)


def _mooncake_registration(payload: Sequence[bytes]) -> str:
    need(payload, 10)
    for index in (4, 5):
        words8(payload[index])
    lists8(payload[6])
    for index in (7, 8, 9):
        number(payload[index])
    for index in (10, 11, 13):
        optional(payload, index, lists4)
    optional(payload, 12, words4)
    for index in (15, 16, 17):
        optional(payload, index, number)
    return sharding_session(payload[3])


def _nixl_registration(payload: Sequence[bytes]) -> str:
    need(payload, 12)
    for index in (5, 6):
        words8(payload[index])
    optional(payload, 7, lists8)
    for index in (8, 9, 10, 11):
        number(payload[index])
    for index in (12, 13, 19):
        optional(payload, index, lists4)
    optional(payload, 18, words8)
    optional(payload, 20, words4)
    for index in (15, 16, 21, 22):
        optional(payload, index, number)
    return text(payload[3])


def _mori_registration(payload: Sequence[bytes]) -> str:
    """Its session is inside the engine's description, which is the vendor's own."""
    need(payload, 11)
    for index in (7, 8, 9, 10):
        number(payload[index])
    return ""


def _mooncake_metadata(payload: Sequence[bytes], room: int) -> PrefillMessage:
    need(payload, 8)
    is_dummy = payload[4] == b"" and payload[5] == b""
    if not is_dummy:
        words4(payload[4])
        number(payload[5])
        lists4(payload[6])
    number(payload[7])
    if len(payload) > 8:
        optional(payload, 8, number)
        optional(payload, 9, words4)
    return _metadata(payload, room, sharding_session(payload[3]), is_dummy=is_dummy)


def _nixl_metadata(payload: Sequence[bytes], room: int) -> PrefillMessage:
    need(payload, 7)
    words4(payload[4])
    for index in (5, 6):
        number(payload[index])
    optional(payload, 7, lists4)
    prefix = number(payload[8]) if len(payload) > 8 and payload[8] else 0
    is_marked = len(payload) > 9 and payload[9] != b""
    is_dummy = number(payload[9]) != 0 if is_marked else not payload[4] and not prefix
    return _metadata(payload, room, text(payload[3]), is_dummy=is_dummy)


def _mori_metadata(payload: Sequence[bytes], room: int) -> PrefillMessage:
    need(payload, 6)
    words4(payload[4])
    aux = number(payload[5]) if payload[5] else -1
    optional(payload, 7, number)
    prefix = number(payload[8]) if len(payload) > 8 and payload[8] else 0
    is_dummy = not payload[4] and aux < 0 and not prefix
    return _metadata(payload, room, text(payload[3]), is_dummy=is_dummy)


REGISTRATIONS: Mapping[Family, Callable[[Sequence[bytes]], str]] = {
    Family.MOONCAKE: _mooncake_registration,
    Family.NIXL: _nixl_registration,
    Family.MORI: _mori_registration,
}
METADATA: Mapping[Family, Callable[[Sequence[bytes], int], PrefillMessage]] = {
    Family.MOONCAKE: _mooncake_metadata,
    Family.NIXL: _nixl_metadata,
    Family.MORI: _mori_metadata,
}


def _metadata(payload: Sequence[bytes], room: int, session: str, *, is_dummy: bool) -> PrefillMessage:
    return _of_room(room, Metadata(room, endpoint(payload[1], payload[2]), session, is_dummy))


def _of_room(room: int, message: PrefillMessage) -> PrefillMessage:
    """sglang draws no room beyond the limit; a message for one is stock's own affair."""
    return message if 0 <= room < ROOM_LIMIT else Other()
