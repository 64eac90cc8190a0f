"""Wakes the sidecar: it reads what was written when this rings, else when it next looks (`shell/doorbell.py`)."""

import mmap
import os
import socket

from sglang_hooks.kernel import ring_now
from sglang_hooks.shared_memory import map_memory
from sidecar.wire.memory_pipe import PipeWriter

EVENTFD = "anon_inode:[eventfd]"
"""As /proc shows one."""

_DESCRIPTORS_LIMIT = 2


class Doorbell:
    """`write` takes what a full socket would, and more cheaply; None if no memory came. It never blocks."""

    def __init__(self, descriptor: int, memory: mmap.mmap | None = None) -> None:
        self._descriptor = descriptor
        self._memory = memory
        self._pipe = None if memory is None else PipeWriter(memoryview(memory))
        self.write = None if self._pipe is None else self._pipe.write

    def ring(self) -> None:
        """Never blocks."""
        ring_now(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._pipe is not None and self._memory is not None:
            self._pipe.close()
            self._memory.close()


def receive(stream: socket.socket, limit: int) -> tuple[bytes, Doorbell | None]:
    """At most `limit` bytes, and the doorbell that came with them. What else comes as a descriptor is closed: a write
    to it could block.
    """
    received, descriptors, _, _ = socket.recv_fds(stream, limit, _DESCRIPTORS_LIMIT)
    bells: list[int] = []
    memories: list[mmap.mmap | None] = []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        if _is_eventfd(descriptor) and not bells:
            os.set_blocking(descriptor, False)
            bells.append(descriptor)
        else:
            memories.append(map_memory(descriptor))
            os.close(descriptor)
    return received, Doorbell(bells[0], next(iter(memories), None)) if bells else None


def _is_eventfd(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == EVENTFD
    except OSError:
        return False  # there is no /proc to ask
