"""Test-only sglang plugin: what a CPU needs, an event log, controls and a look inside. Never part of the product.

The patches are plain assignments made while plugins load, before sglang applies its hooks. So they lie beneath the
hooks of every other plugin, whatever the order of loading: the log shows what really reached or left the engine.
"""

import multiprocessing


def register() -> None:
    if multiprocessing.parent_process() is None:
        return  # the HTTP process: the scheduler processes it spawns load plugins themselves
    from pd_sidecar_shim import cpu, scheduling, sockets, stages, tables, transfers  # noqa: PLC0415 - these import the engine

    for part in (cpu, stages, sockets, transfers, scheduling, tables):
        part.apply()
