"""Rooms whose rank has died: when decode may be told of them.

A dead rank writes nothing more, but bytes it wrote may still be on their way into decode's memory, and another rank
of the same engine may still be writing: a room is due once the grace has passed and no other rank of that engine
holds it open.
"""

from collections.abc import Callable

from sidecar.core.deadlines import Deadlines
from sidecar.core.keys import LifeKey

DEATH_CAUSE = "the prefill rank died"


class Lifeline:
    """`is_held(key)`: whether a rank that may still write has the room of that life open."""

    def __init__(self, *, grace_s: float, is_held: Callable[[LifeKey], bool]) -> None:
        self._grace_s = grace_s
        self._is_held = is_held
        self._in_grace: Deadlines[LifeKey] = Deadlines()
        self._held: dict[LifeKey, None] = {}

    def __len__(self) -> int:
        return len(self._in_grace) + len(self._held)

    def orphan(self, key: LifeKey, now: float) -> None:
        self._in_grace.set(key, now + self._grace_s)

    def take_due(self, now: float) -> list[LifeKey]:
        """Lives that decode may be told of now. Cheap while nothing is orphaned."""
        candidates = [*self._held, *self._in_grace.pop_due(now)]
        self._held = {key: None for key in candidates if self._is_held(key)}
        return [key for key in candidates if key not in self._held]

    def next_deadline(self) -> float | None:
        """Held lives have none: they are looked at whenever something happens."""
        return self._in_grace.next()
