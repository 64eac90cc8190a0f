"""The streams that are read when their ranks ring: besides that when they end, now and then, and when somebody asks."""

import asyncio
import select
from collections.abc import Callable

LOOK_EVERY_S = 1.0
"""How long a fact may lie unread that nobody rang for. To look costs an idle process its caches, and who computes
beside it the core."""


class QuietStreams:
    def __init__(self) -> None:
        self._reads: dict[int, Callable[[], None]] = {}
        self._ends = select.epoll()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, descriptor: int, read: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if not self._reads:
            loop.add_reader(self._ends.fileno(), self._read_ended)
        self._reads[descriptor] = read
        self._ends.register(descriptor, select.EPOLLRDHUP)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_EVERY_S, self._look)

    def remove(self, descriptor: int) -> None:
        del self._reads[descriptor]
        self._ends.unregister(descriptor)
        if not self._reads:
            self.stop()

    def read_all(self) -> None:
        """What has been written so far, up to one read's worth of each."""
        for read in list(self._reads.values()):
            read()

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ends.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.read_all()
        if self._reads:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _read_ended(self) -> None:
        for descriptor, _ in self._ends.poll(0):
            if (read := self._reads.get(descriptor)) is not None:
                read()
