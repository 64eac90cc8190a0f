"""Keeps faults of ours out of the engine's threads: a hook's own part runs contained, the engine's part never does."""

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("pd_sidecar")

Parameters = ParamSpec("Parameters")
Outcome = TypeVar("Outcome")
Fallback = TypeVar("Fallback")

FAULTS: Counter[str] = Counter()
"""Faults contained so far in this process, by the name of the function they came out of."""


def contained(
    *, otherwise: Fallback
) -> Callable[[Callable[Parameters, Outcome]], Callable[Parameters, Outcome | Fallback]]:
    """Makes a function that cannot raise: a fault is counted, logged in full the first time, answered with `otherwise`.

    Never put it around a call into the engine: what stock raises must reach stock.
    """

    def contain(body: Callable[Parameters, Outcome]) -> Callable[Parameters, Outcome | Fallback]:
        @functools.wraps(body)
        def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Outcome | Fallback:
            try:
                return body(*args, **kwargs)
            except Exception:
                note_fault(body.__qualname__)
                return otherwise

        return guarded

    return contain


def note_fault(place: str) -> None:
    """Counts the exception being handled; the traceback is logged once for each place."""
    FAULTS[place] += 1
    if FAULTS[place] == 1:
        logger.exception("pd-sidecar: contained a fault in %s; the engine goes on as stock does", place)
