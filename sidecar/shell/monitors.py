"""The monitors of all links behind one descriptor of the loop's, which costs an endpoint less than one for each."""

import asyncio
import select
from typing import Protocol


class Watched(Protocol):
    def read(self) -> None: ...


class Monitors:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}
        self._fresh: list[int] = []
        loop.add_reader(self._epoll, self._look)

    def watch(self, descriptor: int, watched: Watched) -> None:
        """It is read soon, since a ZMQ_FD says nothing before it was first found dry, and whenever there may be
        something."""
        self._watched[descriptor] = watched
        self._epoll.register(descriptor, select.EPOLLIN)
        if not self._fresh:
            self._loop.call_soon(self._look_at_fresh)
        self._fresh.append(descriptor)

    def forget(self, descriptor: int) -> None:
        """Before it is closed."""
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll)
        self._epoll.close()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            self._read(descriptor)

    def _look_at_fresh(self) -> None:
        fresh, self._fresh = self._fresh, []
        for descriptor in fresh:
            self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        """What was read before may have closed it."""
        watched = self._watched.get(descriptor)
        if watched is not None:
            watched.read()
