"""Tombstones against the plainest table that could stand in for them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks import tombstones
from sglang_hooks.tombstones import Tombstone, Tombstones

LIMIT = 4

steps = st.lists(st.tuples(st.sampled_from(["add", "pop", "expire"]), st.integers(1, 8)), max_size=40)


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rooms share them."""
    monkeypatch.setattr(tombstones, "PARTS", 3)


@given(steps)
def test_the_oldest_go_and_one_of_a_room_stays(steps: list[tuple[str, int]]) -> None:
    """`added`: all in their order, also those that are not there any more; so many count for the limit."""
    few, plain, added = Tombstones(LIMIT), dict[int, Tombstone](), list[Tombstone]()
    for at, (step, number) in enumerate(steps):
        if step == "add":
            added.append(tombstone := Tombstone(number, at, float(at)))
            plain[number] = tombstone
            oldest = added.pop(0) if len(added) > LIMIT else None
            is_lost = oldest is not None and plain.get(oldest.room) is oldest
            assert few.add(tombstone) is is_lost
            if oldest is not None and is_lost:
                del plain[oldest.room]
        elif step == "pop":
            assert few.pop(number) is plain.pop(number, None)
        else:
            few.expire(float(number))
            added = [one for one in added if one.expires_at_s > number]
            plain = {room: one for room, one in plain.items() if one.expires_at_s > number}

        assert len(few) == len(plain)
        assert [room for room in range(1, 9) if room in few] == sorted(plain)
        assert few.expire_from_s() == (added[0].expires_at_s if added else inf)
