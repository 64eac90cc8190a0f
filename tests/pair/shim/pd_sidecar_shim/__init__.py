"""Test-only sglang plugin: what a CPU needs, an event log, controls and a look inside. Never part of the product.

The patches are plain assignments made while plugins load, before sglang applies its hooks. So they lie beneath the
hooks of every other plugin, whatever the order of loading: the log shows what really reached or left the engine.
"""

import sys
from types import FrameType


def register() -> None:
    from pd_sidecar_shim import switch  # noqa: PLC0415 - it imports the engine

    switch.apply()
    if not _is_scheduler():
        return  # the HTTP process, and from 0.5.22 the detokenizer too
    from pd_sidecar_shim import cpu, scheduling, sockets, stages, tables, threads, timings, transfers  # noqa: PLC0415 - these import the engine

    for part in (cpu, stages, threads, sockets, transfers, scheduling, tables, timings):
        part.apply()


def _is_scheduler() -> bool:
    """sglang loads plugins in several kinds of process; who calls says which one this is."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way to it
    while frame is not None:
        if frame.f_code.co_name == "run_scheduler_process":
            return True
        frame = frame.f_back
    return False
