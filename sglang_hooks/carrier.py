"""Stock's own status messages by way of the sidecar (`PD_SIDECAR_PUSH=all`).

Nobody waits: a message is posted as any fact is, and kept until the sidecar says that it needs no care any more. What
the sidecar does not take within OVERDUE_S goes the way that stock had meant for it, on a thread for that endpoint, and
so does what comes after it until the sidecar answers again. Without a sidecar stock sends as it always has.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from msgspec import Struct, structs

from sglang_hooks.emitter import Emitter
from sglang_hooks.messages.pushed import endpoint_of, fits_a_parcel, room_of
from sglang_hooks.registrations import Registrations
from sglang_hooks.stock_path import Send, StockPath
from sidecar.model import DecodeEndpoint, ParcelGiven, ParcelRefused, ParcelsTaken

TAKE_WITHIN_S = 0.15
"""Whoever reads a parcel later leaves it. The sidecar says within 0.05 s that it has taken one."""

OVERDUE_S = 0.25
"""Without that word. Found at the emitter thread's next look, so within 0.35 s."""

HEIR_WAIT_S = 1.0
"""How long what a dead sidecar had taken waits for its successor."""

KEPT_LIMIT = 16_384
STRANGER_LIMIT = 8192

_BUT_FOR_A_WHILE = ("suspended", "full")
"""The sidecar is there: while it does not keep up, nobody is to meet what stock's send may do to its caller."""


class _Kept(Struct, eq=False):
    parcel: ParcelGiven
    send: Send
    overdue_at: float


class Carrier:
    """Guarded by the rank's lock. `_given` are without an answer, `_taken` in the sidecar's care; each in order."""

    def __init__(
        self,
        *,
        emitter: Emitter,
        registrations: Registrations,
        lock: threading.Lock,
        next_seq: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._emitter = emitter
        self._registrations = registrations
        self._lock = lock
        self._next_seq = next_seq
        self._clock = clock
        self._given: dict[int, _Kept] = {}
        self._taken: dict[int, _Kept] = {}
        self._strangers: set[DecodeEndpoint] = set()
        self._is_suspended = False
        self._heir_by: float | None = None
        # A Success that stock pushes must be known to the sidecar first, should this process die right after.
        self._stock_path = StockPath(before_each=emitter.flush_or_break)

    @property
    def is_waiting(self) -> bool:
        """For an answer of the sidecar."""
        return bool(self._given)

    def carry(self, url: str, frames: Sequence[bytes], send: Send, *, may_block: bool) -> bool:
        """Whether it is taken care of. If not, the caller does as stock does, which may block."""
        endpoint = endpoint_of(url)
        if endpoint is None:
            return False
        with self._lock:
            why_not = self._why_not(endpoint, frames)
            if why_not is None:
                self._give(endpoint, frames, send)
            else:
                self.counts[f"stock_{why_not}"] += 1
        if why_not is None:
            self._emitter.flush()
            return True
        if may_block and why_not not in _BUT_FOR_A_WHILE and not self._stock_path.is_busy(endpoint):
            return False
        return self._stock_path.send(endpoint, send) or not may_block

    # -- the emitter's words, on its thread

    def heard(self, reply: ParcelsTaken | ParcelRefused) -> None:
        match reply:
            case ParcelsTaken():
                self._note_taken(reply)
            case ParcelRefused(seq=seq):
                self._note_refused(seq)

    def _note_taken(self, reply: ParcelsTaken) -> None:
        with self._lock:
            answered = list(takewhile(lambda seq: seq <= reply.seq, self._given))
            for seq in answered:
                self._taken[seq] = self._given.pop(seq)
            for seq in reply.ended:
                self._taken.pop(seq, None)
            self.counts["ended"] += len(reply.ended)
            self._is_suspended = False

    def _note_refused(self, seq: int) -> None:
        with self._lock:
            kept = self._given.pop(seq, None)
        self.counts["refused"] += 1
        if kept is not None:
            self._leave_to_stock([kept])

    def look(self) -> None:
        """Whether something is overdue. Replies that have come were read before."""
        now = self._clock()
        with self._lock:
            overdue = list(takewhile(lambda kept: kept.overdue_at <= now, self._given.values()))
            for kept in overdue:
                del self._given[kept.parcel.seq]
            self._is_suspended = self._is_suspended or bool(overdue)
            self.counts["overdue"] += len(overdue)
            if self._heir_by is not None and self._heir_by <= now:
                overdue = [*self._taken.values(), *overdue]
                self._taken.clear()
                self._heir_by = None
        self._leave_to_stock(overdue)

    def stream_ended(self) -> None:
        """What was not taken goes at once; what was taken waits for the sidecar's successor."""
        with self._lock:
            left = list(self._given.values())
            self._given.clear()
            self.counts["unanswered"] += len(left)
            if self._heir_by is None and self._taken:
                self._heir_by = self._clock() + HEIR_WAIT_S
        self._leave_to_stock(left)

    def replay(self) -> Iterator[ParcelGiven]:
        """For a sidecar that may know nothing of them. The lock is held."""
        if not self._emitter.takes_parcels:
            return
        now = self._clock()
        self._heir_by, self._is_suspended = None, False
        for seq, kept in self._taken.items():
            parcel = structs.replace(kept.parcel, take_by_s=now + TAKE_WITHIN_S)
            self._given[seq] = _Kept(parcel, kept.send, now + OVERDUE_S)
            yield parcel
        self._taken.clear()

    def report(self) -> dict[str, Any]:
        return {
            "kept": len(self._given) + len(self._taken),
            **self.counts,
            "stock_path": asdict(self._stock_path.counts),
        }

    # -- inside

    def _why_not(self, endpoint: DecodeEndpoint, frames: Sequence[bytes]) -> str | None:
        """The lock is held. An endpoint that is sent more than statuses is stock's alone: what else there is, staged
        chunks and metadata over TCP, has to come before the room's Success."""
        if room_of(frames) is None and len(self._strangers) <= STRANGER_LIMIT:
            self._strangers.add(endpoint)
        if endpoint in self._strangers or len(self._strangers) > STRANGER_LIMIT:
            return "order"
        if not fits_a_parcel(frames):
            return "size"
        if self._registrations.find(endpoint) is None:
            return "unregistered"
        if not (self._emitter.is_open and self._emitter.takes_parcels):
            return "no_sidecar"
        if self._is_suspended:
            return "suspended"
        return None if self._has_room() else "full"

    def _has_room(self) -> bool:
        if len(self._given) + len(self._taken) < KEPT_LIMIT:
            return True
        if not self._taken:
            return False
        self._taken.pop(next(iter(self._taken)))  # the sidecar has it
        self.counts["let_go"] += 1
        return True

    def _give(self, endpoint: DecodeEndpoint, frames: Sequence[bytes], send: Send) -> None:
        room, registration = room_of(frames), self._registrations.find(endpoint)
        assert room is not None and registration is not None  # noqa: PT018, S101 - `_why_not` has looked
        seq, now = self._next_seq(), self._clock()
        parcel = ParcelGiven(seq, room, endpoint, registration.session, tuple(frames), now + TAKE_WITHIN_S)
        self._given[seq] = _Kept(parcel, send, now + OVERDUE_S)
        self.counts["given"] += 1
        self._emitter.post(parcel)

    def _leave_to_stock(self, left: Sequence[_Kept]) -> None:
        for kept in left:
            self._stock_path.send(kept.parcel.endpoint, kept.send)
