"""LifeIndex against the plainest table that could stand in for it."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.keys import LifeKey
from sidecar.core.life_index import LifeIndex
from sidecar.core.room import Room

keys = st.builds(LifeKey, st.sampled_from(["p", "q"]), st.integers(1, 2), st.integers(1, 5))


@given(st.lists(keys, max_size=30))
def test_lives_come_and_go_in_any_order(steps: list[LifeKey]) -> None:
    """Each step adds the life of that key, or takes it out if it is there."""
    index, plain = LifeIndex(), dict[LifeKey, Room]()
    for key in steps:
        if key in plain:
            index.remove(plain.pop(key))
        else:
            plain[key] = Room(key)
            index.add(plain[key])
        lives = [life for life in plain.values() if (life.key.process, life.key.room) == (key.process, key.room)]
        lives.sort(key=lambda life: -life.key.life)

        assert index.of_room(key.process, key.room) == lives
        assert index.newest(key.process, key.room) is (lives[0] if lives else None)
        assert [life.has_newer_life for life in lives] == [life is not lives[0] for life in lives]
        assert index.find(key.process, key.room, key.life) is plain.get(key)
