"""What the socket of a rank hears, looked at before stock does."""

import threading
from collections.abc import Callable
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.rank import Rank
from sidecar.model import ROOM_LIMIT, DecodeEndpoint

METADATA_FRAMES = 8  # room, ip, port, session, KV indices, aux index, state indices, required_dst_info_num
REGISTRATION_TAG = b"None"
ABORT_TAG = b"ABORT"


class ControlMessages:
    """What one rank's bootstrap thread receives, looked at before stock does
    (`MooncakeKVManager.start_prefill_thread`)."""

    def __init__(self, manager: Any, rank: Rank) -> None:
        self._manager = manager
        self._rank = rank
        self._thread = threading.local()

    def wrap(self, receive: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
        """A `recv_multipart` that keeps to itself what must not reach stock."""

        def recv_multipart(*args: Any, **kwargs: Any) -> list[bytes]:
            while True:
                self._after_last()
                frames = receive(*args, **kwargs)
                if not self._keep_back(frames):
                    return frames

        return recv_multipart

    def is_guarded(self, room: int) -> bool:
        """Whether the message that this thread is handling must not fail `room`."""
        return bool(getattr(self._thread, "guarded_room", None) == room)

    @contained(otherwise=None)
    def _after_last(self) -> None:
        """Stock has handled the last message. A life may have ended between our look at it and stock's: nothing may
        stay of it."""
        self._thread.guarded_room = None
        room = getattr(self._thread, "joined_room", None)
        self._thread.joined_room = None
        if room is not None and self._rank.purge_if_ended(room, lambda: purge_tables(self._manager, room)):
            self._rank.counts.revivals_purged += 1

    @contained(otherwise=False)
    def _keep_back(self, frames: list[bytes]) -> bool:
        tag = frames[0]
        if tag == REGISTRATION_TAG:
            self._rank.registered(_endpoint(frames[1], frames[2]), frames[3].decode("ascii"), len(frames))
            return False
        if tag == ABORT_TAG:
            room = _room(frames[1])
            if self._rank.decode_aborted(room, _endpoint(frames[2], frames[3])):
                self._thread.guarded_room = room
            return False
        if not tag.isdigit() or len(frames) < METADATA_FRAMES:
            return False
        return self._keep_back_metadata(_room(tag), frames)

    def _keep_back_metadata(self, room: int, frames: list[bytes]) -> bool:
        is_dummy = frames[4] == b"" and frames[5] == b""
        if is_dummy:
            return self._rank.is_late(room)
        late = self._rank.meet(room, _endpoint(frames[1], frames[2]), frames[3].decode("ascii"))
        if not late:
            self._thread.joined_room = room
        return late


def _room(frame: bytes) -> int:
    room = int(frame)
    if not 0 <= room < ROOM_LIMIT:
        raise ValueError(f"no bootstrap room: {room}")
    return room


def _endpoint(host: bytes, port: bytes) -> DecodeEndpoint:
    return DecodeEndpoint(host.decode("ascii"), int(port))


def purge_tables(manager: Any, room: int) -> bool:
    """Takes a room out of the engine's tables. Answers whether it was in one."""
    tables = (manager.request_status, manager.transfer_infos, manager.req_to_decode_prefix_len)
    found = [table.pop(room, None) is not None for table in tables]
    with manager.failure_lock:
        found.append(manager.failure_records.pop(room, None) is not None)
    return any(found)
