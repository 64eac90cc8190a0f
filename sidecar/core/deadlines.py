"""When what is due: a heap of times by key, whose memory stays in proportion to the keys that live."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[Key]):
    """At most one time for each key. Outdated heap entries are skipped, and swept once they outnumber the live ones."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: Key, at: float) -> None:
        if self._at.get(key) == at:
            return
        self._at[key] = at
        self._serial += 1
        heappush(self._heap, (at, self._serial, key))
        self._sweep()

    def bring_forward(self, key: Key, at: float) -> None:
        """A key that is due earlier already stays so: whoever is woken too early asks again."""
        known = self._at.get(key)
        if known is None or at < known:
            self.set(key, at)

    def clear(self, key: Key) -> None:
        if self._at.pop(key, None) is not None:
            self._sweep()

    def next(self) -> float | None:
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> list[Key]:
        due: list[Key] = []
        while (at := self.next()) is not None and at <= now:
            key = heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due

    def _sweep(self) -> None:
        if len(self._heap) <= 2 * len(self._at) + _SLACK:
            return
        self._heap = [(at, serial, key) for serial, (key, at) in enumerate(self._at.items())]
        self._serial = len(self._heap)
        heapify(self._heap)
