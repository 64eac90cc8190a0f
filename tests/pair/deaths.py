"""When processes have ended for good, as the kernel says it."""

import os
import select
import time
from collections.abc import Callable, Iterable

LIMIT_S = 20.0


def last_death(pids: Iterable[int]) -> Callable[[], float]:
    """Takes hold of living processes. The answer waits until the last of them has ended and gives that moment
    (`time.monotonic`); it raises TimeoutError after LIMIT_S."""
    held = [os.pidfd_open(pid) for pid in pids]

    def wait() -> float:
        deadline = time.monotonic() + LIMIT_S
        try:
            for descriptor in held:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                if not ended.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError(f"a killed process has not ended in {LIMIT_S:.0f} s")
            return time.monotonic()
        finally:
            for descriptor in held:
                os.close(descriptor)

    return wait
