"""The naive model of one life that the machine compares the core with."""

from sidecar.model import DecodeAborted, DecodeAcknowledged, DecodeEndpoint, DecodeHandshake, RoomConcluded, RoomOpened
from tests.core.scene import E3, TTL_S

HOLDERS = {E3}
"""Endpoints that hold the pages of a failed room until prefill has stopped writing."""

Told = RoomOpened | DecodeHandshake | RoomConcluded | DecodeAborted | DecodeAcknowledged


class Life:
    """`waiting` endpoints have shaken hands and nothing has freed us of them since; `handed` are the times of hand-
    offs; those in `once` are told once at most, for a newer life was known when they came to be owed.
    """

    def __init__(self) -> None:
        self.end: str | None = None
        self.at_s = 0.0
        self.is_opened = False
        self.early_since: float | None = None
        self.waiting: dict[DecodeEndpoint, str] = {}
        self.seen: set[DecodeEndpoint] = set()
        self.handed: dict[DecodeEndpoint, float] = {}
        self.tried: set[DecodeEndpoint] = set()
        self.once: set[DecodeEndpoint] = set()

    def open(self) -> None:
        self.is_opened, self.early_since = True, None

    def meet(self, now: float) -> None:
        """If decode alone has made it known it is early, and forgotten in time."""
        if not self.is_opened and self.end is None:
            self.early_since = self.early_since or now

    def free(self, endpoint: DecodeEndpoint) -> None:
        self.waiting.pop(endpoint, None)
        self.handed.pop(endpoint, None)
        self.tried.discard(endpoint)
        self.once.discard(endpoint)

    def owes(self, now: float) -> set[DecodeEndpoint]:
        if self.end not in ("failed", "undrained") or now >= self.at_s + TTL_S:
            return set()
        return set(self.waiting) if self.end == "failed" else self.waiting.keys() & HOLDERS
