"""Status messages as decode's control thread takes them, byte for byte, and what each version makes of them.

Read in the wheels of 0.5.18 to 0.5.23, `sglang/srt/disaggregation/`, at the line of the decode thread's parser. From
0.5.20 on that is `parse_kv_status_message` for all (`common/conn.py` 0.5.20:454, 21:474, 22:665, 23:757): the tag, if
the backend has one, then at least three frames; a fourth is the cause if it is not empty; more are not looked at.

Mooncake, and Ascend, whose manager inherits it (`mooncake/conn.py` `start_decode_thread`):
  0.5.18:2110, 19:2184 unpack exactly three frames: any other number ends the thread for good.
  0.5.20:2362, 21:2626, 22:3008, 23:3064 parse.
NIXL (`nixl/conn.py`):
  0.5.18:598, 19:595 know no status message. The thread, where there is one (only with staging, in 0.5.19 also with
  deferred release), warns of the tag and goes on; else nothing reads the socket.
  0.5.20:630, 21:638, 22:666, 23:1028 parse, and the thread is always there.
Mori (`mori/conn.py` `_start_decode_thread`):
  0.5.18:597, 19:793 the tag, three frames, and a fourth as the cause, which must be UTF-8.
  0.5.20:721, 21:746, 22:997, 23:1022 parse.
Decode's own half of this project reads the frame after the cause as an HTTP status, on any of these.
"""

from functools import lru_cache

from msgspec import Struct

from sidecar.model import Form, Notice
from sidecar.wire.decode_half import DRAINED_ABORT

KV_POLL_FAILED = b"0"

CAUSE_LIMIT_BYTES = 1024
HTTP_STATUSES = range(400, 600)
"""Those that an error can have: three digits."""


class Layout(Struct, frozen=True):
    """`tag` comes before everything, b"" for none. `drained` comes before the cause of an end that has drained."""

    tag: bytes
    drained: bytes


MOONCAKE = Layout(tag=b"", drained=DRAINED_ABORT)

LAYOUTS: dict[str, Layout] = {
    "ascend": MOONCAKE,
    "mooncake": MOONCAKE,
    "mori": Layout(tag=b"MoriMsgGuard", drained=b""),
    "nixl": Layout(tag=b"KV_STATUS", drained=b""),
}
"""By transfer backend. A backend that is not here has a decode that nothing is known to reach."""


_BARE = Form.BARE


def failed_frames(room: int, notice: Notice, form: Form = Form.BARE) -> list[bytes]:
    """The tag, room, status and rank; of more than BARE the cause; of STATUS the HTTP status, if that is known."""
    layout = LAYOUTS[notice.backend]
    frames = [b"%d" % room, KV_POLL_FAILED, _digits(notice.prefill_rank)]
    if layout.tag:
        frames.insert(0, layout.tag)
    if form is _BARE:
        return frames
    cause = one_line(notice.cause)
    frames.append(layout.drained + cause if notice.drained else cause)
    if form is Form.STATUS and notice.http_status in HTTP_STATUSES:
        frames.append(b"%d" % notice.http_status)
    return frames


@lru_cache(maxsize=1024)
def _digits(rank: int) -> bytes:
    return b"%d" % rank


def one_line(cause: str) -> bytes:
    """UTF-8 whatever the text holds, without line breaks or other control characters, cut between characters."""
    words = " ".join(cause.split())
    if not words.isprintable():
        words = "".join(character if character.isprintable() else "?" for character in words)
    return words.encode()[:CAUSE_LIMIT_BYTES].decode(errors="ignore").encode()
