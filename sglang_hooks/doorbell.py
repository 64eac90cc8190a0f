"""Wakes the sidecar: it reads what was written when this rings, else when it next looks (`shell/doorbell.py`)."""

import os
import socket

from sglang_hooks.kernel import ring_now

EVENTFD = "anon_inode:[eventfd]"
"""As /proc shows one."""

_DESCRIPTORS_LIMIT = 1


class Doorbell:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def ring(self) -> None:
        """Never blocks."""
        ring_now(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def receive(stream: socket.socket, limit: int) -> tuple[bytes, Doorbell | None]:
    """At most `limit` bytes, and the doorbell that came with them. What else comes as a descriptor is closed: a write
    to it could block.
    """
    received, descriptors, _, _ = socket.recv_fds(stream, limit, _DESCRIPTORS_LIMIT)
    doorbell = None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        if doorbell is None and _is_eventfd(descriptor):
            os.set_blocking(descriptor, False)
            doorbell = Doorbell(descriptor)
        else:
            os.close(descriptor)
    return received, doorbell


def _is_eventfd(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == EVENTFD
    except OSError:
        return False  # there is no /proc to ask
