"""Leaving the process that started us: its tree, session, terminal, descriptors, CPU set and memory policy."""

import contextlib
import ctypes
import os
import platform
from typing import NoReturn

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_DEFAULT = 0
_PIPE = 3
"""Where the child keeps its end of the pipe, so that all other descriptors can be closed."""

EXIT_DIED = 1


class Caller:
    """Whoever started us and waits to hear that we serve, or why not. Without a pipe nobody waits."""

    def __init__(self, pipe: int | None = None) -> None:
        self._pipe = pipe

    def tell_ready(self) -> None:
        self._tell("0")

    def tell_failure(self, code: int, reason: str) -> None:
        self._tell(f"{code} {reason}")

    def _tell(self, text: str) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):  # it has stopped waiting
                os.write(pipe, text.encode())
            os.close(pipe)


def detach() -> Caller:
    """Returns in the child only; the parent waits for the child's word and ends with its exit code, the reason on
    stderr.

    sglang ends a server by killing all descendants, and we must outlive it to tell decode.
    """
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        _pass_on(ours)
    os.setsid()
    os.dup2(theirs, _PIPE)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))
    with contextlib.suppress(OSError):
        os.chdir("/")
    _use_all_processors()
    _use_default_memory()
    return Caller(_PIPE)


def _pass_on(pipe: int) -> NoReturn:
    said = b""
    while part := os.read(pipe, 4096):
        said += part
    code, _, reason = said.decode(errors="replace").partition(" ")
    if not code.isdigit():
        code, reason = str(EXIT_DIED), "it ended before it served"
    if code != "0":
        os.write(2, f"pd-sidecar: {reason}\n".encode())
    os._exit(int(code))


def _use_all_processors() -> None:
    """An engine pins its ranks, perhaps to one busy core. The kernel keeps us inside our cgroup."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _use_default_memory() -> None:
    call = _SET_MEMPOLICY.get(platform.machine())
    if call is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(call, _MPOL_DEFAULT, None, 0)
