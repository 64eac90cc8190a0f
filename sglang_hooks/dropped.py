"""What was dropped at a control socket: counts by reason, and in the engine's log enough to find out who sends it."""

import logging
import time
from collections.abc import Callable, Sequence

from sglang_hooks.messages.values import Reason

logger = logging.getLogger("pd_sidecar")

REPEAT_AFTER_S = 60.0
SHOWN_FRAMES = 4
SHOWN_BYTES = 24


def no_junk() -> dict[str, int]:
    return {reason.value: 0 for reason in Reason}


class Dropped:
    """`counts` is the caller's, to be reported. A reason is logged when it is first met, then once a minute at most."""

    def __init__(self, counts: dict[str, int], *, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._where = where
        self._clock = clock
        self._told_at_s: dict[Reason, float] = {}
        self._told: dict[Reason, int] = {}

    def note(self, reason: Reason, frames: Sequence[bytes]) -> None:
        self._counts[reason.value] += 1
        now = self._clock()
        told_at_s = self._told_at_s.get(reason)
        if told_at_s is not None and now - told_at_s < REPEAT_AFTER_S:
            return
        count = self._counts[reason.value]
        logger.warning(
            "pd-sidecar: dropped %d message(s) at %s: %s. Without the plugin such a message can end the thread that "
            "serves this rank. The last one, of %d frames, begins with %s",
            count - self._told.get(reason, 0),
            self._where,
            reason.value,
            len(frames),
            [bytes(frame[:SHOWN_BYTES]) for frame in frames[:SHOWN_FRAMES]],
        )
        self._told_at_s[reason], self._told[reason] = now, count
