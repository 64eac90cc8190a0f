"""When what is due: heaps of times, whose memory stays in proportion to what lives."""

from collections import deque
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


def earliest(times: Sequence[float | None]) -> float | None:
    """None: none of them has a time. A plain loop: it is asked for after all that happens."""
    first: float | None = None
    for at in times:
        if at is not None and (first is None or at < first):
            first = at
    return first


SLACK = 64
"""So much that is out of date is kept before it is looked for."""


class Deadlines(Generic[Key]):
    """At most one time for each key. Keys of the same time share one entry of the heap. Outdated ones are skipped, and
    swept once they outnumber the live ones."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._by_time: dict[float, list[Key]] = {}
        self._heap: list[float] = []
        self._listed = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: Key, at: float) -> None:
        if self._at.get(key) == at:
            return
        self._at[key] = at
        self._list(key, at)
        if self._listed > 2 * len(self._at) + SLACK:
            self._sweep()

    def clear(self, key: Key) -> None:
        if self._at.pop(key, None) is not None and self._listed > 2 * len(self._at) + SLACK:
            self._sweep()

    def next(self) -> float | None:
        times = self._at
        while self._heap:
            at = self._heap[0]
            keys = self._by_time[at]
            while keys and times.get(keys[-1]) != at:
                keys.pop()
                self._listed -= 1
            if keys:
                return at
            self._take_first()
        return None

    def pop_due(self, now: float) -> list[Key]:
        times = self._at
        due: list[Key] = []
        while self._heap and self._heap[0] <= now:
            at, keys = self._take_first()
            for key in keys:
                if times.get(key) == at:
                    del times[key]
                    due.append(key)
        return due

    def _list(self, key: Key, at: float) -> None:
        keys = self._by_time.get(at)
        if keys is None:
            self._by_time[at] = [key]
            heappush(self._heap, at)
        else:
            keys.append(key)
        self._listed += 1

    def _take_first(self) -> tuple[float, list[Key]]:
        at = heappop(self._heap)
        keys = self._by_time.pop(at)
        self._listed -= len(keys)
        return at, keys

    def _sweep(self) -> None:
        self._by_time, self._heap, self._listed = {}, [], 0
        for key, at in self._at.items():
            self._list(key, at)


class Mortal(Protocol):
    """Something that is over by itself at `expires_at`, which may be put off, unless it `is_over` before. `listed_at`
    is for Expiries to write: the time by which it is in order there."""

    listed_at: float

    @property
    def expires_at(self) -> float: ...

    @property
    def is_over(self) -> bool: ...


Thing = TypeVar("Thing", bound=Mortal)


class Expiries(Generic[Thing]):
    """For things that know their own time, which costs less than a table of times. One that was put off finds its new
    place when its old time comes; one that is over is only counted, and swept with others like it.

    Most are added in the order of their times: those wait in a line, and only the others in a heap.
    """

    def __init__(self) -> None:
        self._line: deque[Thing] = deque()
        self._line_end = -inf
        self._heap: list[tuple[float, int, Thing]] = []
        self._serial = 0
        self._outdated = 0

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def add(self, thing: Thing) -> None:
        thing.listed_at = at = thing.expires_at
        if at >= self._line_end:
            self._line_end = at
            self._line.append(thing)
            return
        self._serial += 1
        heappush(self._heap, (at, self._serial, thing))

    def note_over(self, count: int = 1) -> None:
        """So many of the things added are over before their time."""
        self._outdated += count
        if self._outdated > SLACK:
            self._tidy()

    def next(self) -> float | None:
        first = self.first()
        return None if first is None else first.expires_at

    def first(self) -> Thing | None:
        self._trim_line()
        self._trim_heap()
        line, heap = self._line, self._heap
        if heap and (not line or heap[0][0] < line[0].listed_at):
            return heap[0][2]
        return line[0] if line else None

    def pop_due(self, now: float) -> list[Thing]:
        """They are not in it any more."""
        due: list[Thing] = []
        while (thing := self.first()) is not None and thing.expires_at <= now:
            if self._line and self._line[0] is thing:
                self._line.popleft()
            else:
                heappop(self._heap)
            due.append(thing)
        return due

    def _tidy(self) -> None:
        """Mostly those that were added first are over first: then nothing is left to sweep."""
        self._trim_line()
        if self._outdated > (len(self._line) + len(self._heap)) // 2 + SLACK:
            self._line = deque([thing for thing in self._line if not thing.is_over])
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            self._outdated = 0
            heapify(self._heap)

    def _trim_line(self) -> None:
        line = self._line
        while line:
            first = line[0]
            if first.is_over:
                line.popleft()
                self._outdated -= 1
            elif first.expires_at != first.listed_at:
                self.add(line.popleft())
            else:
                return
        self._line_end = -inf

    def _trim_heap(self) -> None:
        heap = self._heap
        while heap:
            at, _, first = heap[0]
            if first.is_over:
                heappop(heap)
                self._outdated -= 1
            elif first.expires_at != at:
                heappop(heap)
                self.add(first)
            else:
                return
