"""Tells a dead process from one that only lost its stream: a descriptor of the process becomes readable when it ends.

Looked at after the stream has ended, when all that the process wrote has been read: words that survived it come first.
"""

import asyncio
import contextlib
import os
import select
from collections.abc import Callable

WATCH_LIMIT = 1024
"""Processes watched after their stream has ended. Beyond it the oldest is no longer watched, and its death not told."""

HEAR_OUT_LIMIT_S = 1.0
"""The stream of a dead process may be held open by a child of it."""


class DeathWatch:
    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._on_death = on_death
        self._descriptors: dict[int, int] = {}
        self._watched: dict[int, None] = {}

    def know(self, stream: int, pid: int) -> None:
        """The process is alive: its stream was just accepted. Pid 0 is a process that this PID namespace cannot see."""
        if pid <= 0:
            return
        try:
            self._descriptors[stream] = os.pidfd_open(pid)
        except OSError:
            return  # gone already, or a kernel without pidfds: its death will not be told

    def watch(self, stream: int) -> None:
        descriptor = self._descriptors.get(stream)
        if descriptor is None:
            return
        self._watched[stream] = None
        asyncio.get_running_loop().add_reader(descriptor, self._died, stream)
        if len(self._watched) > WATCH_LIMIT:
            self._forget(next(iter(self._watched)))

    async def hear_out(self) -> None:
        """Until processes that have just died have been read to the end, and their deaths told."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAR_OUT_LIMIT_S):
                while self._has_untold():  # noqa: ASYNC110 - the loop is who has to read on
                    await asyncio.sleep(0.001)

    def stop(self) -> None:
        for stream in list(self._descriptors):
            self._forget(stream)

    def _has_untold(self) -> bool:
        known = select.poll()
        for descriptor in self._descriptors.values():
            known.register(descriptor, select.POLLIN)
        return bool(known.poll(0))

    def _died(self, stream: int) -> None:
        self._forget(stream)
        self._on_death(stream)

    def _forget(self, stream: int) -> None:
        descriptor = self._descriptors.pop(stream)
        if self._watched.pop(stream, 0) is None:
            asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
