"""What ranks are told of their parcels, and when: each reply wakes a thread beside a busy scheduler."""

from sidecar.core.parcel import ParcelRefusal
from sidecar.model import ParcelRefused, ParcelsTaken, Reply

TAKEN_DELAY_S = 0.05
"""How long the word that a parcel was taken may wait for company. A rank waits five times as long."""

ENDED_LIMIT = 4096
"""In one reply, which has to fit a frame of the stream."""


class _Report:
    def __init__(self) -> None:
        self.refused: list[Reply] = []
        self.up_to = 0
        self.ended: list[int] = []

    def replies(self) -> list[Reply]:
        cuts = range(0, len(self.ended) or 1, ENDED_LIMIT)
        taken = [ParcelsTaken(self.up_to, tuple(self.ended[cut : cut + ENDED_LIMIT])) for cut in cuts]
        return [*self.refused, *taken]


class ParcelReports:
    """By process. A refusal comes before the word that everything up to a later parcel was taken, and at once."""

    def __init__(self) -> None:
        self._of: dict[str, _Report] = {}
        self._due_at: float | None = None
        self._is_due = False

    def note_given(self, process: str, seq: int, now: float) -> None:
        report = self._report(process, now)
        report.up_to = max(report.up_to, seq)

    def note_ended(self, process: str, seq: int, now: float) -> None:
        self._report(process, now).ended.append(seq)

    def refuse(self, process: str, seq: int, refusal: ParcelRefusal) -> None:
        self._of.setdefault(process, _Report()).refused.append(ParcelRefused(seq, refusal.value))
        self._is_due = True

    def handle_timer(self, now: float) -> None:
        self._is_due = self._is_due or (self._due_at is not None and self._due_at <= now)

    def next_deadline(self) -> float | None:
        return self._due_at

    def take(self) -> list[tuple[str, list[Reply]]]:
        if not self._is_due:
            return []
        reports, self._of = self._of, {}
        self._due_at, self._is_due = None, False
        return [(process, report.replies()) for process, report in reports.items()]

    def _report(self, process: str, now: float) -> _Report:
        if self._due_at is None:
            self._due_at = now + TAKEN_DELAY_S
        return self._of.setdefault(process, _Report())
