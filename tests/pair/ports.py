"""Ports that nobody else is given while a test has not bound them yet, or wants nobody there.

They lie below those that the kernel hands out by itself (`net.ipv4.ip_local_port_range`, 32768 and up), so no outgoing
connection and no `bind` to port 0 takes one. Test processes side by side have a thousand each.
"""

import random
import socket
from functools import cache

FIRST, PER_PROCESS, PROCESSES = 20_000, 1_000, 12


def free_port() -> int:
    for _ in range(PER_PROCESS):
        port = _thousand().turn()
        if _is_free(port):
            return port
    raise RuntimeError(f"no free port among {PER_PROCESS}")


def free_ports(count: int) -> list[int]:
    """All different."""
    return [free_port() for _ in range(count)]


class _Thousand:
    """The first port of it is bound as long as this process lives: whoever finds it so takes another thousand."""

    def __init__(self, mark: socket.socket) -> None:
        self._mark = mark
        self._first = mark.getsockname()[1] + 1
        self._turn = random.randrange(PER_PROCESS)  # noqa: S311 - whoever had these before may still be spoken to there

    def turn(self) -> int:
        self._turn = (self._turn + 1) % (PER_PROCESS - 1)
        return int(self._first + self._turn)


@cache
def _thousand() -> _Thousand:
    for number in range(PROCESSES):
        mark = socket.socket()
        try:
            mark.bind(("127.0.0.1", FIRST + number * PER_PROCESS))
        except OSError:
            mark.close()
            continue
        return _Thousand(mark)
    raise RuntimeError(f"{PROCESSES} other processes of tests have taken all ports from {FIRST} on")


def _is_free(port: int) -> bool:
    """Not so while a connection of its last owner lingers."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
