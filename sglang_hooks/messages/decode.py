"""What decode's control thread can get, in sglang 0.5.18 to 0.5.23."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sglang_hooks.messages.fields import JunkError, bounded, is_number, need, number, optional, text
from sglang_hooks.messages.values import AuxData, DecodeMessage, Family, Junk, Other, Reason, Staging, Status
from sidecar.wire.decode_half import DRAINED_ABORT

ABORT_ACK = b"ABORT_ACK"
AUX_DATA = b"AUX_DATA"
CHUNK_READY = b"CHUNK_READY"
STAGING_REQ = b"STAGING_REQ"

STATUS_TAGS = {Family.NIXL: b"KV_STATUS", Family.MORI: b"MoriMsgGuard"}
"""First frame of a status; Mooncake's has none."""


@dataclass(frozen=True, slots=True)
class DecodeStock:
    """What this sglang's control thread takes. `stands_unknown`: what is no status, and statuses with a reason
    (from 0.5.20, and NIXL's and Mori's threads always).
    """

    family: Family
    stands_unknown: bool


def read_for_decode(frames: Sequence[bytes], stock: DecodeStock) -> DecodeMessage:
    """Never raises. Anything that is no junk is taken by stock, a status of Mooncake up to 0.5.19 if it is cut to
    three frames."""
    try:
        bounded(frames)
        need(frames, 1)
        by_tag = TAGGED.get(frames[0])
        if by_tag is not None:
            return by_tag(frames, stock)
        tag = STATUS_TAGS.get(stock.family)
        if tag is None:
            return _status(frames) if is_number(frames[0]) else _unknown(frames, stock)
        return _status(frames[1:]) if frames[0] == tag else _unknown(frames, stock)
    except JunkError as junk:
        return Junk(junk.reason)


def _unknown(frames: Sequence[bytes], stock: DecodeStock) -> DecodeMessage:
    if stock.stands_unknown:
        return Other()
    text(frames[0])
    raise JunkError(Reason.UNKNOWN_TAG)


def _status(payload: Sequence[bytes]) -> DecodeMessage:
    """room, status, rank; then a reason; then, of this project's prefill, an HTTP status."""
    need(payload, 3)
    room, status, rank = (number(frame) for frame in payload[:3])
    reason = payload[3] if len(payload) > 3 else b""
    http_status = _http_status(payload[4]) if len(payload) > 4 else None
    is_ours = reason != b"" or http_status is not None
    cause = reason.removeprefix(DRAINED_ABORT).decode("utf-8", errors="replace")
    return Status(room, status, rank, cause, http_status, is_ours)


def _http_status(frame: bytes) -> int | None:
    if len(frame) != 3 or not frame.isdigit() or not 400 <= int(frame) <= 599:
        return None
    return int(frame)


def _aux_data(frames: Sequence[bytes], stock: DecodeStock) -> DecodeMessage:
    if stock.family is Family.NIXL:
        return _unknown(frames, stock)
    need(frames, 6)
    _, buffer_index, aux_index = (number(frame) for frame in frames[1:4])
    if len(frames[4]) != 4 or int.from_bytes(frames[4], "big") != len(frames[5]):
        raise JunkError(Reason.MISMATCHED)
    return AuxData(buffer_index, aux_index, len(frames[5]))


def _chunk_ready(frames: Sequence[bytes], stock: DecodeStock) -> DecodeMessage:
    if stock.family is Family.MORI:
        return Other()
    need(frames, 6)
    for frame in frames[1:5]:
        number(frame)
    text(frames[5])
    return Staging()


def _staging_req(frames: Sequence[bytes], stock: DecodeStock) -> DecodeMessage:
    if stock.family is Family.MORI:
        return Other()
    need(frames, 5)
    for frame in frames[1:4]:
        number(frame)
    text(frames[4])
    optional(frames, 5, number)
    return Staging()


def _abort_ack(frames: Sequence[bytes], _stock: DecodeStock) -> DecodeMessage:
    need(frames, 2)
    for frame in frames[1:4]:
        number(frame)
    return Other()


TAGGED: Mapping[bytes, Callable[[Sequence[bytes], DecodeStock], DecodeMessage]] = {
    ABORT_ACK: _abort_ack,
    AUX_DATA: _aux_data,
    CHUNK_READY: _chunk_ready,
    STAGING_REQ: _staging_req,
}
