"""The event log: one JSON line for each event, appended whole, from every process of a pair.

Format: {"t": CLOCK_MONOTONIC seconds, "pid", "role", "kind", ...}. Readers are in tests/pair/events.py.
"""

import json
import os
import time
from functools import cache
from typing import Any

ROLE = os.environ.get("PD_SHIM_ROLE", "unknown")


@cache
def _descriptor() -> int | None:
    path = os.environ.get("PD_SHIM_EVENTS")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else None


def note(kind: str, **fields: Any) -> None:
    now = time.monotonic()
    descriptor = _descriptor()
    if descriptor is None:
        return
    line = json.dumps({"t": now, "pid": os.getpid(), "role": ROLE, "kind": kind, **fields})
    os.write(descriptor, line.encode() + b"\n")
