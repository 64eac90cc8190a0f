"""What stock pushes to decode through its one choke point: a room's status, an ABORT_ACK, or more than that. Pure.

Mooncake and Ascend put nothing before a status; NIXL and Mori put a tag. Of all backends an ABORT_ACK is the tag, the
room, and from 0.5.19 on the rank and from 0.5.22 on a generation.
"""

from collections.abc import Sequence

from sidecar.model import PARCEL_BYTES_LIMIT, PARCEL_FRAMES_LIMIT, ROOM_LIMIT, DecodeEndpoint

TAGS = frozenset({b"ABORT_ACK", b"KV_STATUS", b"MoriMsgGuard"})

_SCHEME = "tcp://"


def room_of(frames: Sequence[bytes]) -> int | None:
    """None for anything but a status or an ABORT_ACK."""
    rest = frames[1:] if frames and frames[0] in TAGS else frames
    is_ack = len(rest) < len(frames) and frames[0] == b"ABORT_ACK"
    numbers = rest[:1] if is_ack else rest[:3]
    if len(numbers) < (1 if is_ack else 3) or not all(number.isdigit() and len(number) < 20 for number in numbers):
        return None
    room = int(numbers[0])
    return room if room < ROOM_LIMIT else None


def fits_a_parcel(frames: Sequence[bytes]) -> bool:
    return len(frames) <= PARCEL_FRAMES_LIMIT and sum(map(len, frames)) <= PARCEL_BYTES_LIMIT


def endpoint_of(url: str) -> DecodeEndpoint | None:
    """As decode has registered with it: sglang writes an IPv6 address into brackets for libzmq."""
    host, colon, port = url.removeprefix(_SCHEME).rpartition(":")
    if not (url.startswith(_SCHEME) and colon and host and port.isdigit() and len(port) < 6):
        return None
    return DecodeEndpoint(host.removeprefix("[").removesuffix("]"), int(port))
