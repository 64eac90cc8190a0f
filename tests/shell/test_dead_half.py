"""As many dead endpoints as living ones, of every kind of dead, in the short form of `make bench`."""

from bench.endpoints import dead_endpoints, delays
from bench.running import percentile

LIVING, NOTICES = 30, 300
LATE_S = 0.5
"""A stall of one endpoint that held up others would last for seconds: a connection's time to fail, a heartbeat's."""


def test_dead_endpoints_hold_up_no_living_one() -> None:
    waited_s = delays(LIVING, NOTICES, dead_endpoints(LIVING))

    assert len(waited_s) == NOTICES
    assert percentile(waited_s, 0.99) < LATE_S
