"""What is carried to one decode endpoint, in order, and what bounds it."""

import math
from collections.abc import Sequence

from msgspec import Struct

from sidecar.core.endpoint_queue import EndpointQueue
from sidecar.core.parcel import Parcel


def length(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames))


class ParcelLimits(Struct, frozen=True, kw_only=True):
    """A full lane, or the lane with the oldest parcel of a full table, drops first what was handed off already, then
    what has waited longest."""

    per_endpoint: int = 8192
    total: int = 32_768
    bytes_total: int = 16 * 1024 * 1024


class Lane:
    """What is carried to one endpoint, in order. `pending` and `handed_off` are disjoint; what was handed off was so
    before anything pending."""

    def __init__(self, queue: EndpointQueue, now: float) -> None:
        self.queue = queue
        self.pending: dict[Parcel, None] = {}
        self.handed_off: dict[Parcel, None] = {}
        self.settles_from = now
        self.refusals = 0
        self.retry_at: float | None = None
        self.is_due = False

    def __len__(self) -> int:
        return len(self.pending) + len(self.handed_off)

    @property
    def least_needed(self) -> Parcel:
        return next(iter(self.handed_off or self.pending))

    def settle_at(self, settle_after_s: float) -> float | None:
        """At whole seconds, so that what ends at all endpoints ends together and is reported in one reply."""
        first = next(iter(self.handed_off), None)
        return None if first is None else math.ceil(max(first.handed_off_at, self.settles_from) + settle_after_s)
