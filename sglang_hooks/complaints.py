"""What is told of the stream to the sidecar: counts, and in the engine's log each trouble once."""

import logging
from dataclasses import dataclass

logger = logging.getLogger("pd_sidecar")

PATIENCE_TRIES = 12  # about 15 s


@dataclass
class Traffic:
    """Plain counters; `last_failure` is why there is no stream now, empty while there is one. `shares_memory`: what is
    said goes through memory, not the stream."""

    connected: bool = False
    shares_memory: bool = False
    connects: int = 0
    failures: int = 0
    last_failure: str = "not tried yet"
    facts_sent: int = 0
    facts_dropped: int = 0
    facts_replayed: int = 0
    accepted_seq: int = 0
    refusals: int = 0


class Complaints:
    """`leaves_absence_to_others`: another process of the engine says that there is no sidecar."""

    def __init__(self, path: str) -> None:
        self.leaves_absence_to_others = False
        self._path = path
        self._failures_in_a_row = 0
        self._has_complained = False
        self._has_told_overflow = False

    def connected(self, facts_replayed: int) -> None:
        self._has_complained = False
        self._failures_in_a_row = 0
        logger.info("pd-sidecar: connected to the sidecar at %s, %d facts replayed", self._path, facts_replayed)

    def failed(self, reason: str, *, is_being_started: bool) -> None:
        """Once for each outage; a sidecar that is being started is given time first."""
        self._failures_in_a_row += 1
        if self._has_complained or self.leaves_absence_to_others:
            return
        if is_being_started and self._failures_in_a_row < PATIENCE_TRIES:
            return
        self._has_complained = True
        logger.warning(
            "pd-sidecar: no sidecar at %s (%s). The engine serves as stock sglang does: decode is not told when "
            "prefill gives a request up. Trying again quietly.",
            self._path,
            reason,
        )

    def overflowed(self, facts_dropped: int) -> None:
        """Once in a process: the counts say how it went on."""
        if self._has_told_overflow:
            return
        self._has_told_overflow = True
        logger.warning(
            "pd-sidecar: the sidecar at %s did not read in time; %d facts have found no place in the queue, and what "
            "lives is told again on a new stream. Further losses are only counted (facts_dropped).",
            self._path,
            facts_dropped,
        )
