"""RetrySchedule."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.backoff import RetrySchedule


def schedule(jitter: float = 0.0) -> RetrySchedule:
    return RetrySchedule(first_s=0.02, cap_s=5.0, jitter=lambda: jitter)


def test_doubles_up_to_the_cap() -> None:
    delays = [schedule(1.0).delay(refusals) for refusals in range(1, 12)]

    assert delays[:4] == [0.02, 0.04, 0.08, 0.16]
    assert delays[-1] == 5.0


def test_only_the_upper_half_is_drawn() -> None:
    assert schedule(0.0).delay(1) == 0.01
    assert schedule(0.5).delay(1) == 0.015


@given(st.integers(-5, 10**9), st.floats(0.0, 1.0, exclude_max=True))
def test_never_overflows_and_stays_within_bounds(refusals: int, jitter: float) -> None:
    assert 0.01 <= schedule(jitter).delay(refusals) <= 5.0


@given(st.integers(1, 100))
def test_never_shrinks_for_the_same_draw(refusals: int) -> None:
    assert schedule().delay(refusals) <= schedule().delay(refusals + 1)
