"""Ledger: rooms that are owed few and rooms that are owed many are found alike."""

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core import ledger
from sidecar.core.keys import LifeKey, Outcome
from sidecar.core.ledger import Ledger
from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint, Notice
from tests.core.test_room import Counting

ENDPOINTS = [DecodeEndpoint("127.0.0.1", 7_000 + number) for number in range(4)]
LIVES = [LifeKey(process, 1, life) for process in ("p", "q") for life in (1, 2, 3)]
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(LIVES), st.sampled_from(ENDPOINTS)), max_size=60)


def notice(life: LifeKey, endpoint: DecodeEndpoint) -> OwedNotice:
    return OwedNotice(life, endpoint, 1, Notice(0, "gone"), "s", 0.0, 300.0, is_once=False)


@pytest.fixture(autouse=True, scope="module")
def small_crowds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "CROWD", 3)
        yield


@given(STEPS)
def test_agrees_with_a_plain_dict(steps: list[tuple[bool, LifeKey, DecodeEndpoint]]) -> None:
    book = Ledger()
    model: dict[tuple[LifeKey, DecodeEndpoint], OwedNotice] = {}
    for is_owed, life, endpoint in steps:
        known = model.get((life, endpoint))
        if is_owed and known is None:
            model[life, endpoint] = notice(life, endpoint)
            book.add(model[life, endpoint])
        elif known is not None and not is_owed:
            known.outcome = Outcome.HELD_UP
            book.remove([model.pop((life, endpoint))])

        assert book.count == len(model)
        assert all(book.find(life, endpoint) is model.get((life, endpoint)) for life in LIVES for endpoint in ENDPOINTS)
        for key in LIVES:
            older = [one for (life, _), one in model.items() if life.process == key.process and life.life < key.life]
            assert sorted(book.older(key), key=id) == sorted(older, key=id)
            for at in ENDPOINTS:
                assert set(map(id, book.older_of(key, at))) == {id(one) for one in older if one.endpoint == at}
    rest = list(model.values())
    for one in rest:
        one.outcome = Outcome.HELD_UP
    book.remove(rest)
    assert (book.count, book.next_expiry(), book._by_room, book._crowds) == (0, None, {}, {})  # noqa: SLF001


def test_what_an_endpoint_costs_does_not_grow_with_the_others_of_its_room() -> None:
    """Guards against a room that is looked through for each."""
    book, life, count = Ledger(), LIVES[1], 1_000
    crowd = [notice(life, Counting(number)) for number in range(count)]  # type: ignore[arg-type]
    Counting.comparisons = 0
    for owed in crowd:
        assert book.find(life, owed.endpoint) is None
        book.add(owed)
    for number, owed in enumerate(crowd):
        again = cast(DecodeEndpoint, Counting(number))
        assert book.find(life, again) is owed
        assert book.older_of(LIVES[2], again) == [owed]
    book.remove(crowd)

    assert Counting.comparisons < 10 * count
