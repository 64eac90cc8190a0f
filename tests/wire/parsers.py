"""How each version's decode reads a status message: our own small models of its control thread.

Each says where the lines are that it models, in the wheel of that version under `sglang/srt/disaggregation/`.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct


class ThreadDiedError(Exception):
    """The exception leaves the thread's loop: this decode rank hears nothing more."""


class Heard(Struct, frozen=True):
    """A status that decode acts on. `cause` None: its own words for it."""

    room: int
    status: int
    rank: int
    cause: str | None = None


Parser = Callable[[Sequence[bytes]], Heard | None]
"""None: dropped or ignored, and the thread goes on."""


def unpacking(frames: Sequence[bytes]) -> Heard | None:
    """Mooncake and Ascend: `mooncake/conn.py` 0.5.18:2110-2113, 0.5.19:2184-2187."""
    try:
        room, status, rank = frames
        return Heard(int(room.decode("ascii")), int(status.decode("ascii")), int(rank.decode("ascii")))
    except (ValueError, UnicodeDecodeError) as error:
        raise ThreadDiedError from error


def parsing(tag: bytes | None) -> Parser:
    """All backends from 0.5.20 on: `common/conn.py` `parse_kv_status_message` 0.5.20:454-479, 0.5.21:474-499,
    0.5.22:665-690, 0.5.23:757-782, equal in all four."""

    def parse(frames: Sequence[bytes]) -> Heard | None:
        if tag is not None:
            if not frames or frames[0] != tag:
                return None
            frames = frames[1:]
        if len(frames) < 3:
            return None
        try:
            room, status, rank = (int(frame.decode("ascii")) for frame in frames[:3])
        except (UnicodeDecodeError, ValueError):
            return None
        has_cause = len(frames) > 3 and frames[3]
        return Heard(room, status, rank, frames[3].decode("utf-8", errors="replace") if has_cause else None)

    return parse


def mori_by_itself(frames: Sequence[bytes]) -> Heard | None:
    """`mori/conn.py` 0.5.18:592-607, 0.5.19:788-809. Whatever is raised is logged and the thread goes on."""
    if not frames or frames[0] != b"MoriMsgGuard" or len(frames) < 4:
        return None
    payload = frames[1:]
    try:
        cause = payload[3].decode("utf-8") if len(payload) > 3 and payload[3] else None
        return Heard(*(int(frame.decode("ascii")) for frame in payload[:3]), cause)
    except (UnicodeDecodeError, ValueError):
        return None


def nixl_unaware(frames: Sequence[bytes]) -> Heard | None:
    """`nixl/conn.py` 0.5.18:598-607, 0.5.19:595-610: two tags are acted on, any other is warned of."""
    if frames[0] in (b"STAGING_REQ", b"ABORT_ACK"):
        raise ThreadDiedError
    return None


def mooncake_from_20(frames: Sequence[bytes]) -> Heard | None:
    """`mooncake/conn.py` 0.5.20:2318-2371, 0.5.21:2582-2635, 0.5.22:2971-3017, 0.5.23:3043-3073: four tags before the
    status are acted on, and malformed ones raise."""
    if frames[0] in (b"AUX_DATA", b"CHUNK_READY", b"STAGING_REQ", b"ABORT_ACK"):
        raise ThreadDiedError
    return parsing(None)(frames)


DECODES: dict[tuple[str, str], Parser] = {
    **{(backend, version): unpacking for backend in ("mooncake", "ascend") for version in ("0.5.18", "0.5.19")},
    **{
        (backend, version): mooncake_from_20
        for backend in ("mooncake", "ascend")
        for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
    },
    **{("nixl", version): nixl_unaware for version in ("0.5.18", "0.5.19")},
    **{("nixl", version): parsing(b"KV_STATUS") for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")},
    **{("mori", version): mori_by_itself for version in ("0.5.18", "0.5.19")},
    **{("mori", version): parsing(b"MoriMsgGuard") for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")},
}
"""By transfer backend and version."""
