"""Which cores a pair's processes may use."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence

from tests.pair.running import Pair


@contextlib.contextmanager
def prefill_apart(pairs: Sequence[Pair]) -> Iterator[None]:
    """The first core is for the prefill schedulers alone, as every rank has one in production; all else shares the
    others.

    Where several schedulers spin on two cores, a request's time depends more on who had to move than on what is
    measured.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    schedulers = {pid for pair in pairs for pid in pair.prefill.scheduler_pids()}
    others = {pid for pair in pairs for pid in _processes(pair)} - schedulers
    _allow(others, cores[1:])
    _allow(schedulers, cores[:1])
    try:
        yield
    finally:
        _allow(others | schedulers, cores)


@contextlib.contextmanager
def at_rest(processes: Iterable[int]) -> Iterator[None]:
    """They do not run in here."""
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def _processes(pair: Pair) -> Iterator[int]:
    yield os.getpid()
    yield from pair.prefill.pids()
    yield from pair.decode.pids()
    if pair.router is not None:
        yield from pair.router.pids()
    if (sidecar := pair.sidecar_pid()) is not None:
        yield sidecar


def _allow(processes: Iterable[int], cores: Sequence[int]) -> None:
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), cores)
