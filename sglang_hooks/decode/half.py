"""The decode half of one manager: says to prefill that it is there and what it has heard, and keeps what sglang has no
place for. Called from the scheduler thread and from the control thread.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.decode.rooms import Rooms
from sglang_hooks.messages.prefill import GUARDS, NO_ROOM
from sidecar.wire.decode_half import acknowledgement, announcement

NOBLOCK = 1
"""`zmq.NOBLOCK`, which pyzmq takes as a number. The engine's own pyzmq is not imported for it."""

LOCK_LIMIT_S = 0.2
"""For which the control thread waits for a connection that the scheduler is sending on."""

GUARD_FRAMES = frozenset(GUARDS.values())


@dataclass
class HalfCounts:
    """`notices`: statuses of a prefill of this project. `late`: statuses of rooms that decode had finished with."""

    announcements: int = 0
    notices: int = 0
    acknowledged: int = 0
    acknowledgements_lost: int = 0
    late: int = 0


class DecodeHalf:
    def __init__(self, sglang: str) -> None:
        self.counts = HalfCounts()
        self._sglang = sglang
        self._lock = threading.Lock()
        self._rooms: Rooms[PrefillLine] = Rooms()
        self._registration: list[bytes] | None = None

    # -- what decode says to prefill; the scheduler thread

    def opened(self, room: int) -> None:
        with self._lock:
            self._rooms.open(room)

    def outgoing(self, frames: Sequence[bytes], line: "PrefillLine") -> Sequence[bytes]:
        """What goes over `line` in place of `frames`."""
        return self._announced(frames, line) or frames

    @contained(otherwise=None)
    def _announced(self, frames: Sequence[bytes], line: "PrefillLine") -> list[bytes] | None:
        payload = frames[1:] if frames[0] in GUARD_FRAMES else frames
        if payload[0] == NO_ROOM:
            said = announcement(frames, self._sglang)
            with self._lock:
                self._registration = list(frames)
                self.counts.announcements += 1
            return said
        if payload[0].isdigit():
            with self._lock:
                self._rooms.announce(int(payload[0]), line)
        return None

    # -- what prefill says to decode; the control thread

    def reported(self, room: int, prefill_rank: int, *, is_ours: bool) -> bool:
        """A prefill rank has failed the room. Answers whether it waits for an acknowledgement."""
        with self._lock:
            self.counts.notices += is_ours
            return self._rooms.report(room, prefill_rank) and is_ours

    def keep(self, room: int, cause: str, http_status: int | None) -> None:
        with self._lock:
            self._rooms.keep(room, cause, http_status)

    def cause(self, room: int) -> str:
        with self._lock:
            return self._rooms.cause(room)

    def http_status(self, room: int) -> int | None:
        with self._lock:
            return self._rooms.http_status(room)

    def reports(self, room: int) -> int:
        """How many prefill ranks have failed the room."""
        with self._lock:
            return self._rooms.reports(room)

    def acknowledge(self, room: int) -> None:
        """To every prefill rank that knows of the room: one notice has told decode for all of them."""
        with self._lock:
            registration, lines = self._registration, self._rooms.lines(room)
        if registration is None:
            return
        frames = acknowledgement(registration, room)
        for line in lines:
            is_sent = line.send_now(frames)
            self.counts.acknowledged += is_sent
            self.counts.acknowledgements_lost += not is_sent

    def rooms(self) -> dict[str, int]:
        with self._lock:
            return {"known": len(self._rooms), "evicted": self._rooms.evicted}


class PrefillLine:
    """sglang's connection to one prefill rank, in place of the socket that it sends on with the lock held."""

    def __init__(self, socket: Any, lock: Any, half: DecodeHalf) -> None:
        self._socket = socket
        self._lock = lock
        self._half = half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrefillLine) and self._socket is other._socket

    def __hash__(self) -> int:
        return id(self._socket)

    def send_multipart(self, frames: Sequence[bytes], *args: Any, **kwargs: Any) -> Any:
        return self._socket.send_multipart(self._half.outgoing(frames, self), *args, **kwargs)

    @contained(otherwise=False)
    def send_now(self, frames: list[bytes]) -> bool:
        """Never waits for the network. sglang closes connections that it has given up, and full ones refuse."""
        if self._socket.closed or not self._lock.acquire(timeout=LOCK_LIMIT_S):
            return False
        try:
            self._socket.send_multipart(frames, NOBLOCK)
        finally:
            self._lock.release()
        return True
