"""Histogram: what came together is counted as if it had come one by one."""

import pytest

from sidecar.core.stats import BUCKETS_S, Histogram


@pytest.mark.parametrize(
    "times_s",
    [[], [0.002], [0.002] * 9, [0.0005, 0.0006, 0.3, 7.0, 500.0, 0.0], [-1.0, 0.1, 0.1, 0.1, 0.1, 0.1]],
)
def test_times_fall_below_their_upper_bounds(times_s: list[float]) -> None:
    histogram = Histogram()
    histogram.observe(times_s)

    bounds = [*BUCKETS_S, float("inf")]
    assert histogram.counts == [
        sum(lower < seconds <= upper for seconds in times_s)
        for lower, upper in zip([float("-inf"), *bounds], bounds, strict=False)
    ]
    assert histogram.sum_s == pytest.approx(sum(max(seconds, 0.0) for seconds in times_s))
