"""The way that stock's messages go when the sidecar does not take them after all, and nobody waits for it.

Stock's send may block for 30 s on a dead endpoint. So each endpoint has a line of its own, emptied in order by a thread
that ends with it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.model import DecodeEndpoint

LINE_LIMIT = 1024
THREAD_LIMIT = 32
"""At once. Only endpoints that stock's send is stuck on keep theirs."""

AGE_LIMIT_S = 60.0
"""In a line. A message that is older might be taken for one about a newer request in the same room."""

Send = Callable[[], None]


@dataclass
class StockPathCounts:
    """`failed`: stock's send raised. `lost`: no place in a line, no thread for one, or too long in it."""

    sent: int = 0
    failed: int = 0
    lost: int = 0


class StockPath:
    """`before_each` runs in the line's thread before each send."""

    def __init__(self, *, before_each: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = StockPathCounts()
        self._before_each = before_each
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[DecodeEndpoint, deque[tuple[float, Send]]] = {}

    def is_busy(self, endpoint: DecodeEndpoint) -> bool:
        return endpoint in self._lines

    def send(self, endpoint: DecodeEndpoint, send: Send) -> bool:
        """After what was given before for that endpoint. Never waits. Answers whether it has a place."""
        with self._lock:
            line = self._lines.get(endpoint)
            if line is not None and len(line) < LINE_LIMIT:
                line.append((self._clock(), send))
                return True
            if line is not None or len(self._lines) >= THREAD_LIMIT:
                self.counts.lost += 1
                return False
            self._lines[endpoint] = deque([(self._clock(), send)])
        threading.Thread(target=self._empty, args=(endpoint,), name="pd-sidecar-stock-path", daemon=True).start()
        return True

    def _empty(self, endpoint: DecodeEndpoint) -> None:
        while True:
            with self._lock:
                line = self._lines[endpoint]
                if not line:
                    del self._lines[endpoint]
                    return
                since, send = line.popleft()
            if self._clock() - since > AGE_LIMIT_S:
                self.counts.lost += 1
            else:
                self._send(send)

    def _send(self, send: Send) -> None:
        try:
            self._before_each()
            send()
        except Exception:  # zmq.Again for one: there is no caller to raise it to
            self.counts.failed += 1
        else:
            self.counts.sent += 1
