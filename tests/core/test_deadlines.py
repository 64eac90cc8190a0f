"""Deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.deadlines import Deadlines


def test_the_earliest_comes_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 20.0)
    deadlines.set("early", 10.0)

    assert deadlines.next() == 10.0
    assert deadlines.pop_due(10.0) == ["early"]
    assert deadlines.next() == 20.0


def test_a_later_time_takes_the_place_of_an_earlier_one() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10.0)
    deadlines.set("a", 20.0)
    deadlines.set("a", 20.0)

    assert deadlines.pop_due(15.0) == []
    assert deadlines.pop_due(20.0) == ["a"]
    assert deadlines.next() is None


def test_bringing_forward_never_puts_off() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.bring_forward("a", 10.0)
    deadlines.bring_forward("a", 20.0)
    deadlines.bring_forward("a", 5.0)

    assert deadlines.next() == 5.0


def test_a_cleared_key_is_not_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10.0)
    deadlines.clear("a")
    deadlines.clear("a")

    assert deadlines.pop_due(100.0) == []


def test_memory_follows_the_keys_that_live() -> None:
    """Guards against a heap that keeps an entry for each notice of the last five minutes."""
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.set(number, 1e6 - number)
        if number >= 10:
            deadlines.clear(number - 10)

    assert len(deadlines) == 10
    assert len(deadlines._heap) <= 100  # noqa: SLF001 - the claim is about memory


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(0.0, 100.0)))), st.floats(0.0, 100.0))
def test_agrees_with_a_plain_dict(steps: list[tuple[int, float | None]], now: float) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    for key, at in steps:
        if at is None:
            deadlines.clear(key)
            model.pop(key, None)
        else:
            deadlines.set(key, at)
            model[key] = at

    assert deadlines.next() == min(model.values(), default=None)
    assert sorted(deadlines.pop_due(now)) == sorted(key for key, at in model.items() if at <= now)
