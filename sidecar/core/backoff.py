"""How long to wait before the next attempt at an endpoint that refused one."""

from collections.abc import Callable

from msgspec import Struct

_LAST_DOUBLING = 32
"""Beyond this many doublings any sensible cap is reached; the exponent stops so that no float overflows."""


class RetrySchedule(Struct, frozen=True, kw_only=True):
    """Doubles from `first_s` to `cap_s`; the upper half of each delay is drawn, so that endpoints fall out of step.

    `jitter` draws from [0, 1).
    """

    first_s: float
    cap_s: float
    jitter: Callable[[], float]

    def delay(self, refusals: int) -> float:
        """Seconds to wait after that many refusals in a row, the first being 1."""
        doublings = min(max(refusals, 1) - 1, _LAST_DOUBLING)
        ceiling = min(self.cap_s, self.first_s * 2.0**doublings)
        return ceiling * (0.5 + 0.5 * self.jitter())
