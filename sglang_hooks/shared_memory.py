"""Memory that a sidecar has given to this process, to write what it says to (`sidecar/wire/memory_pipe.py`)."""

import fcntl
import mmap
import os
import platform

from sidecar.wire.memory_pipe import PIPE_BYTES

KEEPS_ORDER = platform.machine() == "x86_64"
"""Whether another core sees stores in their order."""


def map_memory(descriptor: int) -> mmap.mmap | None:
    """None for what could shrink below this process, which is then sent SIGBUS, and for what is no memory at all."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size != PIPE_BYTES:
            return None
        return mmap.mmap(descriptor, PIPE_BYTES)
    except (OSError, ValueError):
        return None
