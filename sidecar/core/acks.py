"""When ranks are told which of their facts are held."""

from collections.abc import Iterable

from sidecar.core.ranks import Rank
from sidecar.model import Accepted


class Acknowledgements:
    """The first fact starts a delay; what comes within it is acknowledged together, one reply for each rank."""

    def __init__(self, *, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due_at: float | None = None
        self._is_due = False

    def owe(self, now: float) -> None:
        if self._due_at is None:
            self._due_at = now + self._delay_s
        self.handle_timer(now)

    def handle_timer(self, now: float) -> None:
        self._is_due = self._is_due or (self._due_at is not None and self._due_at <= now)

    def next_deadline(self) -> float | None:
        return self._due_at

    def take(self, ranks: Iterable[Rank]) -> list[tuple[Rank, Accepted]]:
        if not self._is_due:
            return []
        self._due_at, self._is_due = None, False
        taken = ((rank, rank.take_unacknowledged()) for rank in ranks)
        return [(rank, Accepted(seq)) for rank, seq in taken if seq is not None]
