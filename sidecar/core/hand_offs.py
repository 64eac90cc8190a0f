"""Which hand-offs ranks are told of, so that a successor of this sidecar need not tell those notices again.

A hand-off puts the notice into the memory of this process; a moment later it is in the kernel, which sends it even if
this process is killed. It is said to be so only if nothing casts doubt on it: the connection is up, it has refused
nothing since, and so few notices on it are unsettled that the kernel's buffers hold them all though the peer may be
frozen. A word that no longer holds, because the connection broke, is taken back.
"""

from collections import deque

from sidecar.core.endpoint_queue import Connection, EndpointQueue
from sidecar.core.owed import NoticeState, OwedNotice

_UP = Connection.UP
_HANDED_OFF = NoticeState.HANDED_OFF

DELAY_S = 0.02
"""libzmq's thread needs some 50 us to take a message to the kernel; a busy machine may keep it waiting for a slice."""

GRAIN_S = 0.005
"""And so much longer is waited, for those handed off meanwhile: each look wakes the process."""

SURELY_HELD = 1024
"""Unsettled notices of one endpoint. The kernel of a frozen peer and our own took 78,000 to 169,000 of this size."""


class HandOffReports:
    """What is ready are notices and whether their hand-offs stand."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, EndpointQueue, list[OwedNotice]]] = deque()
        self._ready: list[tuple[list[OwedNotice], bool]] = []

    def note(self, queue: EndpointQueue, handed_off: list[OwedNotice], now: float) -> None:
        if queue.connection is _UP:
            self._recent.append((now, queue, handed_off))

    def take_back(self, doubtful: list[OwedNotice]) -> None:
        believed = [owed for owed in doubtful if owed.is_reported]
        for owed in believed:
            owed.is_reported = False
        self._add(believed, stands=False)

    def contradict(self, owed: OwedNotice) -> None:
        """Its rank still believes in a word that was taken back: it was lost with an earlier stream."""
        self._add([owed], stands=False)

    def handle_timer(self, now: float) -> None:
        recent = self._recent
        standing: list[OwedNotice] = []
        while recent and recent[0][0] + DELAY_S <= now:
            at, queue, handed_off = recent.popleft()
            if queue.connection is _UP and queue.settles_from <= at and len(queue.handed_off) <= SURELY_HELD:
                for owed in handed_off:
                    if owed.handed_off_at == at and owed.state is _HANDED_OFF and owed.outcome is None:
                        owed.is_reported = True
                        standing.append(owed)
        self._add(standing, stands=True)

    def next_deadline(self) -> float | None:
        return self._recent[0][0] + DELAY_S + GRAIN_S if self._recent else None

    def take_ready(self) -> list[tuple[list[OwedNotice], bool]]:
        ready, self._ready = self._ready, []
        return ready

    def _add(self, notices: list[OwedNotice], *, stands: bool) -> None:
        if notices:
            self._ready.append((notices, stands))
