"""How late the event loop wakes up: the one number that says whether anything else here can be in time."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType

INTERVAL_S = 1.0
STALL_S = 1.0
"""So late a timer comes when the whole process stood still: SIGSTOP, a paused machine, no CPU."""

WINDOW = 60


class Pulse:
    """`every` names what is to be called again and again: by seconds, which are rounded to whole beats. `on_stall` is
    called after the loop was held up for longer than STALL_S."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        every: Mapping[float, Callable[[], None]] = MappingProxyType({}),
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._every = {max(1, round(seconds / INTERVAL_S)): call for seconds, call in every.items()}
        self._on_stall = on_stall
        self._beats = 0
        self._lags: deque[float] = deque([0.0], maxlen=WINDOW)
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def lag_s(self) -> float:
        return self._lags[-1]

    @property
    def max_lag_s(self) -> float:
        """Over the last minute."""
        return max(self._lags)

    def start(self) -> None:
        self._due = self._clock() + INTERVAL_S
        self._handle = self._loop.call_later(INTERVAL_S, self._beat)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        self._lags.append(max(0.0, self._clock() - self._due))
        if self.lag_s > STALL_S:
            self._on_stall()
        self._beats += 1
        self.start()
        for beats, call in self._every.items():
            if self._beats % beats == 0:
                call()
