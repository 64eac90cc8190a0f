"""Beside an engine's threads on the same cores."""

import os

import structlog


def yield_to_others() -> None:
    """From here on no wake-up of this process interrupts a thread that computes: it takes an idle core, or its turn
    (SCHED_BATCH, sched(7)). Threads started later are alike. A policy that somebody chose for this process stays.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        structlog.get_logger("sidecar").warning("wake-ups interrupt the engine: SCHED_BATCH refused", reason=str(error))
