"""Leaving the process that started us: its tree, session, terminal, descriptors, CPU set and memory policy."""

import contextlib
import ctypes
import os
import platform

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_DEFAULT = 0


def detach() -> None:
    """Returns in the child only. sglang ends a server by killing all descendants, and we must outlive it to tell
    decode.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with contextlib.suppress(OSError):
        os.chdir("/")
    _use_all_processors()
    _use_default_memory()


def _use_all_processors() -> None:
    """An engine pins its ranks, and we inherit one busy core. The kernel keeps us inside our cgroup."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _use_default_memory() -> None:
    call = _SET_MEMPOLICY.get(platform.machine())
    if call is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(call, _MPOL_DEFAULT, None, 0)
