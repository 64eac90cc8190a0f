"""Plain counters that the core keeps and the shell exposes. Gauges are read from the tables, not kept here."""

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from sidecar.model import Form

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Histogram:
    """Counts by upper bound, not cumulated; the last count is everything above the last bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, times_s: Sequence[float]) -> None:
        """Many that came together are mostly alike: one look at the extremes then does for all."""
        counts = self.counts
        if len(times_s) > 4 and (least := min(times_s)) >= 0.0:
            bucket = bisect_left(BUCKETS_S, least)
            if bucket == bisect_left(BUCKETS_S, max(times_s)):
                counts[bucket] += len(times_s)
                self.sum_s += sum(times_s)
                return
        for seconds in times_s:
            counts[bisect_left(BUCKETS_S, seconds)] += 1
            self.sum_s += seconds if seconds > 0.0 else 0.0


@dataclasses.dataclass
class Stats:
    facts: Counter[str] = dataclasses.field(default_factory=Counter)
    facts_replayed: int = 0
    facts_implausible: int = 0
    facts_dropped: int = 0
    refused_streams: Counter[str] = dataclasses.field(default_factory=Counter)
    ranks_joined: int = 0
    ranks_left: int = 0
    ranks_lost: int = 0
    ranks_died: int = 0
    ranks_forgotten: int = 0
    rooms_failed: int = 0
    rooms_orphaned: int = 0
    rooms_undrained: int = 0
    rooms_succeeded: int = 0
    rooms_contradicted: int = 0
    rooms_refused: int = 0
    refusals_evicted: int = 0
    open_rooms_dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    records_expired: int = 0
    records_evicted_early: int = 0
    tombstones_lost: int = 0
    handshakes_late: int = 0
    handshakes_superseded: int = 0
    handshakes_over_limit: int = 0
    notices_owed: int = 0
    notices_suppressed: Counter[str] = dataclasses.field(default_factory=Counter)
    notices_ended: Counter[str] = dataclasses.field(default_factory=Counter)
    hand_offs: int = 0
    hand_offs_again: int = 0
    hand_offs_by_form: Counter[Form] = dataclasses.field(default_factory=Counter)
    refusals: int = 0
    connections_opened: int = 0
    connections_closed: Counter[str] = dataclasses.field(default_factory=Counter)
    connections_over_limit: int = 0
    endpoint_ups: int = 0
    reconnects: int = 0
    endpoint_downs: int = 0
    parcels_taken: int = 0
    parcels_refused: Counter[str] = dataclasses.field(default_factory=Counter)
    parcels_handed_off: int = 0
    parcels_handed_off_again: int = 0
    parcels_ended: Counter[str] = dataclasses.field(default_factory=Counter)
    owed_to_hand_off: Histogram = dataclasses.field(default_factory=Histogram)
    owed_to_settled: Histogram = dataclasses.field(default_factory=Histogram)
