"""How long calls into the plugin take on the scheduler's own thread, as `pd_timings` of /server_info: by name pairs of
nanoseconds, by the clock and of this thread's CPU. Only where PD_SHIM_TIMINGS names a stream socket, to which beside
each hand-over as many bytes are sent bare, before it and after it in turns: the second of two finds the way warm.
`nothing` is what taking the time takes.
"""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from pd_sidecar_shim.patching import wrap

TIMINGS: dict[str, list[tuple[int, int]]] = {
    "append": [],
    "hand_over": [],
    "bare_send": [],
    "nothing": [],
    "given_up": [],
}
FRAME = bytes(96)
"""As long as the fact that a life has ended."""


def apply() -> None:
    path = os.environ.get("PD_SHIM_TIMINGS")
    if path is None:
        return
    from sglang_hooks.outlet import Outlet  # noqa: PLC0415 - not every venv has the plugin
    from sglang_hooks.rank import Rank  # noqa: PLC0415

    bare = socket.socket(socket.AF_UNIX)
    bare.connect(path)
    bare.setblocking(False)
    wrap(Outlet, "_open_outlet", _open_outlet)
    _time(Outlet, "flush", "hand_over", when=lambda outlet, **_: outlet._unsent, beside=lambda: _send_bare(bare))  # noqa: SLF001
    _time(Rank, "release", "given_up", when=lambda _rank, life, *_: not life.succeeded)
    wrap(Scheduler, "get_internal_state", _get_internal_state)


def _open_outlet(original: Any, outlet: Any, *args: Any, **kwargs: Any) -> Any:
    """`post` is made anew for each stream."""
    answer = original(outlet, *args, **kwargs)
    _time(outlet, "post", "append", when=lambda _: True)
    return answer


def _time(
    owner: Any, name: str, called: str, *, when: Callable[..., Any], beside: Callable[[], None] = lambda: None
) -> None:
    original, main = getattr(owner, name), threading.main_thread().ident
    whose_turn = itertools.cycle([True, False])

    def timed(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != main or not when(*args, **kwargs):
            return original(*args, **kwargs)
        if is_first := next(whose_turn):
            beside()
        with _measured(called):
            answer = original(*args, **kwargs)
        if not is_first:
            beside()
        return answer

    setattr(owner, name, timed)


def _send_bare(bare: socket.socket) -> None:
    with _measured("nothing"):
        pass
    with _measured("bare_send"), suppress(BlockingIOError):
        bare.send(FRAME)


class _measured:
    def __init__(self, called: str) -> None:
        self._timings = TIMINGS[called]

    def __enter__(self) -> None:
        self._began, self._began_cpu = time.perf_counter_ns(), time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        spent_cpu = time.thread_time_ns() - self._began_cpu
        self._timings.append((time.perf_counter_ns() - self._began, spent_cpu))


def _get_internal_state(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    answer = original(scheduler, *args, **kwargs)
    answer.internal_state["pd_timings"] = {name: list(values) for name, values in TIMINGS.items()}
    return answer
