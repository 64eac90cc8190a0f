"""What the decode half of this project says to a prefill rank, in a form that stock prefill takes as well.

Every stock prefill of sglang 0.5.18 to 0.5.23 loses its control thread over a tag that it does not know, so there is
no tag of ours. What it does stand is a KV registration (`KVArgsRegisterInfo`) followed by empty frames up to an index
that no version uses, and then anything. Said again, a registration changes nothing at stock prefill.
"""

from collections.abc import Sequence

from sidecar.errors import WireError
from sidecar.model import ROOM_LIMIT

MAGIC_INDEX = 40
ACKNOWLEDGED = b"pd-sidecar/1 acknowledged "


def acknowledgement(registration: Sequence[bytes], room: int) -> list[bytes]:
    """That a notice for `room` was taken, as an appendix to the endpoint's own `registration`. Raises WireError for
    one that is too long to be followed.
    """
    if len(registration) > MAGIC_INDEX:
        raise WireError(f"a registration of {len(registration)} frames leaves no room for frame {MAGIC_INDEX}")
    padding = [b""] * (MAGIC_INDEX - len(registration))
    return [*registration, *padding, ACKNOWLEDGED + str(room).encode("ascii")]


def acknowledged_room(frames: Sequence[bytes]) -> int | None:
    """None for a registration that acknowledges nothing. Raises WireError for one that means to and names no room."""
    if len(frames) <= MAGIC_INDEX or not frames[MAGIC_INDEX].startswith(ACKNOWLEDGED):
        return None
    digits = frames[MAGIC_INDEX].removeprefix(ACKNOWLEDGED)
    if not (digits.isdigit() and len(digits) <= 19 and int(digits) < ROOM_LIMIT):
        raise WireError(f"an acknowledgement names no room: {digits[:32]!r}")
    return int(digits)
