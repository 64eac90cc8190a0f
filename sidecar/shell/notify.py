"""What systemd is told of the service: that it serves, that its loop turns, what it is doing, that it ends.

The protocol is sd_notify(3): lines in one datagram to the socket that systemd named. Nothing here waits for systemd.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

BEAT_S = 10.0
"""How often the status is looked at where there is no watchdog."""


class SystemdSocket:
    """Datagrams that are sent or, when systemd is gone or behind, lost."""

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def tell(self, *lines: str) -> bool:
        """Whether it was taken."""
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)
            return True
        return False

    def close(self) -> None:
        self._socket.close()


class Supervised:
    """From `start` on it beats from the loop itself, twice in each watchdog time; a status is sent when it is news.

    READY goes with every datagram until one is taken: a unit must not fail to start because one was lost.
    """

    def __init__(
        self,
        systemd: SystemdSocket,
        *,
        loop: asyncio.AbstractEventLoop,
        status: Callable[[], str],
        watchdog_s: float | None,
    ) -> None:
        self._systemd = systemd
        self._loop = loop
        self._status = status
        self._is_watched = watchdog_s is not None
        self._beat_s = BEAT_S if watchdog_s is None else watchdog_s / 2
        self._is_heard = False
        self._is_ending = False
        self._status_told: str | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> bool:
        """Whether systemd took it."""
        self._beat()
        return self._is_heard

    def begin_reload(self, *, monotonic_us: int) -> None:
        """For `Type=notify-reload`: systemd's job waits for the next READY."""
        self._systemd.tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}")

    def end_reload(self) -> None:
        """READY is told again with each beat should this one be lost."""
        self._is_heard = self._systemd.tell("READY=1")

    def begin_shutdown(self) -> None:
        """The watchdog goes on: the grace may be longer than its time."""
        self._systemd.tell("STOPPING=1", "STATUS=ending")
        self._is_ending = True

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._systemd.close()

    def _beat(self) -> None:
        status = self._status()
        lines = ["WATCHDOG=1"] if self._is_watched else []
        if not (self._is_heard or self._is_ending):
            lines.append("READY=1")
        if status != self._status_told and not self._is_ending:
            lines.append(f"STATUS={status}")
        if lines and self._systemd.tell(*lines):
            self._is_heard, self._status_told = True, status
        self._handle = self._loop.call_later(self._beat_s, self._beat)
