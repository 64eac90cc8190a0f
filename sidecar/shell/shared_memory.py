"""Memory for a `wire.memory_pipe`, to be given to a rank."""

import fcntl
import mmap
import os

from sidecar.wire.memory_pipe import PIPE_BYTES

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Whoever has mapped it is never sent SIGBUS for it."""


def new_memory() -> tuple[int, mmap.mmap]:
    """A descriptor to give away and close, and the memory. Raises OSError where there is none to be had."""
    descriptor = os.memfd_create("pd-sidecar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, PIPE_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return descriptor, mmap.mmap(descriptor, PIPE_BYTES)
    except OSError:
        os.close(descriptor)
        raise
