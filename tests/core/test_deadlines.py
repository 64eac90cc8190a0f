"""Deadlines and Expiries."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.deadlines import Deadlines, Expiries

TIMES = st.one_of(st.floats(0.0, 100.0), st.sampled_from([10.0, 20.0]))
"""Many keys have the same one."""


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


def test_keys_of_one_time_come_together_in_order_and_each_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("a", 10.0), ("b", 10.0), ("c", 10.0), ("a", 20.0), ("a", 10.0), ("b", 20.0)):
        deadlines.set(key, at)

    assert deadlines.pop_due(10.0) == ["a", "c"]
    assert deadlines.pop_due(20.0) == ["b"]


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
    assert deadlines._listed <= 100  # noqa: SLF001 - the claim is about memory


def test_memory_does_not_grow_with_a_key_that_is_put_off_again_and_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for number in range(1000):
        deadlines.set("a", float(number))

    assert deadlines.next() == 999.0
    assert deadlines._listed <= 100  # noqa: SLF001 - the claim is about memory


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), TIMES))), TIMES)
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


class Thing:
    def __init__(self, expires_at: float) -> None:
        self.expires_at = expires_at
        self.listed_at = 0.0
        self.is_over = False


def test_things_expire_in_order_unless_they_are_over() -> None:
    expiries: Expiries[Thing] = Expiries()
    late, early, over = Thing(20.0), Thing(10.0), Thing(5.0)
    for thing in (late, early, over):
        expiries.add(thing)
    over.is_over = True
    expiries.note_over()

    assert expiries.first() is early
    assert expiries.next() == 10.0
    assert expiries.pop_due(10.0) == [early]
    assert expiries.pop_due(30.0) == [late]
    assert (expiries.first(), expiries.next()) == (None, None)


def test_what_comes_out_of_order_expires_in_order_too() -> None:
    expiries: Expiries[Thing] = Expiries()
    things = [Thing(at) for at in (20.0, 10.0, 15.0, 30.0, 5.0)]
    for thing in things:
        expiries.add(thing)
    things[4].is_over = True
    expiries.note_over()

    assert [thing.expires_at for thing in expiries.pop_due(20.0)] == [10.0, 15.0, 20.0]
    assert expiries.next() == 30.0
    assert len(expiries) == 1


def test_a_thing_that_was_put_off_expires_once_and_later() -> None:
    expiries: Expiries[Thing] = Expiries()
    thing = Thing(10.0)
    expiries.add(thing)
    thing.expires_at = 20.0

    assert expiries.pop_due(15.0) == []
    assert expiries.pop_due(20.0) == [thing]
    assert len(expiries) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.floats(0.0, 100.0)),
            st.tuples(st.just("put off"), st.integers(0, 9)),
            st.tuples(st.just("end"), st.integers(0, 9)),
            st.tuples(st.just("pop"), st.floats(0.0, 100.0)),
        )
    )
)
def test_expiries_agree_with_a_plain_list(steps: list[tuple[str, float]]) -> None:
    expiries: Expiries[Thing] = Expiries()
    living: list[Thing] = []
    for step, number in steps:
        if step == "add":
            living.append(Thing(number))
            expiries.add(living[-1])
        elif step == "pop":
            due = sorted((thing for thing in living if thing.expires_at <= number), key=id)
            assert sorted(expiries.pop_due(number), key=id) == due
            living = [thing for thing in living if thing not in due]
        elif living and step == "put off":
            living[int(number) % len(living)].expires_at += 25.0
        elif living:
            living.pop(int(number) % len(living)).is_over = True
            expiries.note_over()

        assert expiries.next() == min((thing.expires_at for thing in living), default=None)


def test_memory_follows_the_things_that_live() -> None:
    """Guards against a heap that keeps each notice of the last five minutes."""
    expiries: Expiries[Thing] = Expiries()
    living: list[Thing] = []
    for number in range(10_000):
        living.append(Thing(1e6 + number))
        expiries.add(living[-1])
        if len(living) > 10:
            living.pop(0).is_over = True
            expiries.note_over()

    assert len(expiries) <= 200
    assert expiries.pop_due(2e6) == living


def test_things_over_behind_one_that_lives_are_swept() -> None:
    expiries: Expiries[Thing] = Expiries()
    first = Thing(1.0)
    things = [Thing(2.0 + number) for number in range(1_000)]
    for thing in (first, *things):
        expiries.add(thing)
    for thing in things[:-1]:
        thing.is_over = True
        expiries.note_over()

    assert len(expiries) <= 200
    assert expiries.pop_due(2_000.0) == [first, things[-1]]
