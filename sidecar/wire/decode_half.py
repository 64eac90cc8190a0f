"""What the decode half of this project says to a prefill rank, in a form that stock prefill takes as well.

Every stock prefill of sglang 0.5.18 to 0.5.23 loses its control thread over a tag that it does not know, so there is
no tag of ours. What it does stand is a KV registration (`KVArgsRegisterInfo`) followed by empty frames up to an index
that no version uses, and then anything. Said again, a registration changes nothing at stock prefill.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.errors import WireError
from sidecar.model import ROOM_LIMIT

MAGIC_INDEX = 40
ANNOUNCED = b"pd-sidecar/1 decode half "
ACKNOWLEDGED = b"pd-sidecar/1 acknowledged "

DRAINED_ABORT = b"DRAINED_ABORT: "
"""Before the cause in a Mooncake notice, whose stock form has none: prefill has stopped writing to decode's pages."""

VERSION_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Announcement:
    """`frames`: of the registration before it was padded. `decode_half`: the sglang it runs in, as a word."""

    frames: int
    decode_half: str


def announcement(registration: Sequence[bytes], sglang: str) -> list[bytes]:
    """The endpoint's own `registration`, saying that a decode half hears what is sent to it. Raises WireError for one
    that is too long to be followed.
    """
    version = "".join(letter for letter in sglang if letter.isascii() and letter.isprintable() and letter != " ")
    words = f"{len(registration)} {version[:VERSION_LIMIT] or 'unknown'}"
    return _appended(registration, ANNOUNCED + words.encode("ascii"))


def announced(frames: Sequence[bytes]) -> Announcement | None:
    """None for a registration that announces nothing. Raises WireError for one that means to and cannot be read."""
    words = _appendix(frames, ANNOUNCED)
    if words is None:
        return None
    count, _, version = words.partition(b" ")
    is_counted = count.isdigit() and len(count) <= 2 and int(count) <= MAGIC_INDEX
    if not is_counted or not 0 < len(version) <= VERSION_LIMIT or not version.isascii():
        raise WireError(f"an announcement that cannot be read: {words[:32]!r}")
    return Announcement(int(count), version.decode("ascii"))


def acknowledgement(registration: Sequence[bytes], room: int) -> list[bytes]:
    """That a notice for `room` was taken, as an appendix to the endpoint's own `registration`. Raises WireError for
    one that is too long to be followed.
    """
    return _appended(registration, ACKNOWLEDGED + str(room).encode("ascii"))


def acknowledged_room(frames: Sequence[bytes]) -> int | None:
    """None for a registration that acknowledges nothing. Raises WireError for one that means to and names no room."""
    digits = _appendix(frames, ACKNOWLEDGED)
    if digits is None:
        return None
    if not (digits.isdigit() and len(digits) <= 19 and int(digits) < ROOM_LIMIT):
        raise WireError(f"an acknowledgement names no room: {digits[:32]!r}")
    return int(digits)


def _appended(registration: Sequence[bytes], magic: bytes) -> list[bytes]:
    if len(registration) > MAGIC_INDEX:
        raise WireError(f"a registration of {len(registration)} frames leaves no room for frame {MAGIC_INDEX}")
    padding = [b""] * (MAGIC_INDEX - len(registration))
    return [*registration, *padding, magic]


def _appendix(frames: Sequence[bytes], magic: bytes) -> bytes | None:
    if len(frames) <= MAGIC_INDEX or not frames[MAGIC_INDEX].startswith(magic):
        return None
    return frames[MAGIC_INDEX].removeprefix(magic)
