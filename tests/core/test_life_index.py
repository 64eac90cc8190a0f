"""LifeIndex against the plainest tables that could stand in for it."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.keys import LifeKey
from sidecar.core.life_index import LifeIndex, Tombstone
from sidecar.core.room import Room

keys = st.builds(LifeKey, st.sampled_from(["p", "q"]), st.integers(1, 2), st.integers(1, 5))
steps = st.lists(st.tuples(st.sampled_from(["there", "buried", "gone"]), keys), max_size=40)


class Both:
    """The index, and plain tables of what must be in it."""

    def __init__(self) -> None:
        self.index = LifeIndex()
        self.lives: dict[LifeKey, Room] = {}
        self.buried: dict[LifeKey, Tombstone] = {}

    def let(self, key: LifeKey, wanted: str) -> None:
        """Be there, buried or gone, as far as that can come next."""
        if wanted == "there" and key not in self.lives:
            self.buried.pop(key, None)
            self.lives[key] = Room(key)
            self.index.add(self.lives[key])
        elif wanted == "buried" and key in self.lives:
            self.buried[key] = Tombstone(key, 1.0)
            self.index.bury(self.lives.pop(key), self.buried[key])
        elif wanted == "gone":
            self.remove(key)

    def remove(self, key: LifeKey) -> None:
        if key in self.lives:
            self.index.remove(self.lives.pop(key))
        elif key in self.buried:
            self.index.remove_tombstone(self.buried.pop(key))

    def agree_on(self, key: LifeKey) -> None:
        found, index = self.lives.get(key) or self.buried.get(key), self.index
        lives = [life for life in self.lives.values() if life.key.process == key.process and life.key.room == key.room]
        lives.sort(key=lambda life: -life.key.life)

        assert index.find(key.process, key.room, key.life) is found
        assert index.of_room(key.process, key.room) == lives
        assert index.newest(key.process, key.room) is (lives[0] if lives else None)
        assert [life.has_newer_life for life in lives] == [life is not lives[0] for life in lives]


@given(steps)
def test_lives_come_and_go_in_any_order(steps: list[tuple[str, LifeKey]]) -> None:
    both = Both()
    for wanted, key in steps:
        both.let(key, wanted)
        for _, any_key in steps:
            both.agree_on(any_key)
    for _, key in steps:
        both.remove(key)
    assert (both.index._newest, both.index._aside) == ({}, {})  # noqa: SLF001 - nothing is left behind


def test_a_tombstone_that_another_life_has_taken_the_place_of_is_not_there_any_more() -> None:
    key = LifeKey("p", 1, 1)
    index, tombstone, again = LifeIndex(), Tombstone(key, 1.0), Room(key)
    index.add(first := Room(key))
    index.bury(first, tombstone)
    index.add(again)
    index.remove_tombstone(tombstone)

    assert index.find("p", 1, 1) is again


def test_a_room_that_is_used_again_and_again_is_found_as_fast() -> None:
    """Its buried lives are in nobody's way: a chain of them would be walked each time, and deeper than C can go."""
    index = LifeIndex()
    for number in range(1, 50_001):
        index.add(room := Room(LifeKey("p", 1, number)))
        index.bury(room, Tombstone(room.key, 1.0))
    index.add(Room(LifeKey("p", 1, 50_001)))

    assert [life.key.life for life in index.of_room("p", 1)] == [50_001]
    assert all(index.find("p", 1, number) is not None for number in range(1, 50_002))
