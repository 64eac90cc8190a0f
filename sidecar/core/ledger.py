"""All notices that are owed, whichever endpoint they are for: found by room and life, and by when they are void."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from sidecar.core.deadlines import Expiries
from sidecar.core.keys import LifeKey
from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint

CROWD = 16
"""A room that is owed more is looked up by life and endpoint; fewer are looked through, and kept in less memory."""

Crowd: TypeAlias = dict[LifeKey, dict[DecodeEndpoint, OwedNotice]]


class Ledger:
    """`count` is how many are owed. A room is owed few at a time, mostly a single one: they hang on each other
    (`OwedNotice.sibling`), which takes no memory besides."""

    def __init__(self) -> None:
        self.count = 0
        self._by_room: dict[int, OwedNotice] = {}  # of all ranks, the newest
        self._crowds: dict[int, Crowd] = {}  # and those that are, or were, too many for that
        self._expiries: Expiries[OwedNotice] = Expiries()

    def first(self) -> OwedNotice:
        """Of at least one, the one that is void first: mostly the one owed longest."""
        return cast(OwedNotice, self._expiries.first())

    def find(self, life: LifeKey, endpoint: DecodeEndpoint) -> OwedNotice | None:
        one = self._by_room.get(life.room)
        if one is None and (crowd := self._crowds.get(life.room)) is not None:
            return crowd.get(life, {}).get(endpoint)
        while one is not None and not (one.endpoint == endpoint and one.life == life):
            one = one.sibling
        return one

    def older(self, key: LifeKey) -> list[OwedNotice]:
        """What older lives of the room are owed."""
        if (newest := self._by_room.get(key.room)) is not None:
            owed = _with_siblings(newest)
            return [one for one in owed if one.life.life < key.life and one.life.process == key.process]
        return [one for theirs in self._older_in_crowd(key) for one in theirs.values()]

    def older_of(self, key: LifeKey, endpoint: DecodeEndpoint) -> list[OwedNotice]:
        """The same, of one endpoint."""
        if key.room in self._crowds:
            return [theirs[endpoint] for theirs in self._older_in_crowd(key) if endpoint in theirs]
        return [one for one in self.older(key) if one.endpoint == endpoint]

    def add(self, owed: OwedNotice) -> None:
        room = owed.life.room
        newest = self._by_room.get(room)
        if newest is None and room in self._crowds:
            self._crowds[room].setdefault(owed.life, {})[owed.endpoint] = owed
        else:
            self._by_room[room] = owed
            if newest is not None:
                self._hang_on(owed, newest)
        self.count += 1
        self._expiries.add(owed)

    def remove(self, ended: Sequence[OwedNotice]) -> None:
        """They have their outcome."""
        by_room = self._by_room
        for owed in ended:
            room = owed.life.room
            newest = by_room.get(room)
            if newest is None:
                self._remove_from_crowd(owed)
            elif newest is not owed:
                _take_out_below(newest, owed)
            elif owed.sibling is None:
                del by_room[room]
            else:
                by_room[room], owed.sibling = owed.sibling, None
        self.count -= len(ended)
        self._expiries.note_over(len(ended))

    def put_off(self, owed: OwedNotice, expires_at: float) -> None:
        """Until then, if that is later."""
        owed.expires_at = max(owed.expires_at, expires_at)

    def expired(self, now: float) -> OwedNotice | None:
        """One that is void by now. It stays until it is removed."""
        first = self._expiries.first()
        return first if first is not None and first.expires_at <= now else None

    def next_expiry(self) -> float | None:
        return self._expiries.next()

    def _hang_on(self, owed: OwedNotice, newest: OwedNotice) -> None:
        owed.sibling = newest
        siblings = _with_siblings(owed)
        if len(siblings) > CROWD:
            self._crowds[owed.life.room] = _crowd_of(siblings)
            del self._by_room[owed.life.room]

    def _older_in_crowd(self, key: LifeKey) -> Iterable[dict[DecodeEndpoint, OwedNotice]]:
        crowd = self._crowds.get(key.room, {})
        return [theirs for life, theirs in crowd.items() if life.life < key.life and life.process == key.process]

    def _remove_from_crowd(self, owed: OwedNotice) -> None:
        crowd = self._crowds[owed.life.room]
        theirs = crowd[owed.life]
        del theirs[owed.endpoint]
        if not theirs:
            del crowd[owed.life]
        if not crowd:
            del self._crowds[owed.life.room]


def _with_siblings(newest: OwedNotice) -> list[OwedNotice]:
    """The oldest first."""
    owed: list[OwedNotice] = []
    one: OwedNotice | None = newest
    while one is not None:
        owed.append(one)
        one = one.sibling
    return owed[::-1]


def _take_out_below(newer: OwedNotice, owed: OwedNotice) -> None:
    while newer.sibling is not None and newer.sibling is not owed:
        newer = newer.sibling
    newer.sibling, owed.sibling = owed.sibling, None


def _crowd_of(siblings: Iterable[OwedNotice]) -> Crowd:
    crowd: Crowd = {}
    for one in siblings:
        one.sibling = None
        crowd.setdefault(one.life, {})[one.endpoint] = one
    return crowd
