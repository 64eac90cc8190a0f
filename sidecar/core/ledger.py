"""All notices that are owed, whichever endpoint they are for: found by room and life, and by when they are void."""

from collections.abc import Sequence
from typing import cast

from sidecar.core.deadlines import Expiries
from sidecar.core.keys import LifeKey
from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint


class Ledger:
    """`count` is how many are owed. A room is owed few at a time, mostly for one of its lives: a list is enough."""

    def __init__(self) -> None:
        self.count = 0
        self._by_room: dict[int, list[OwedNotice]] = {}  # of all ranks
        self._expiries: Expiries[OwedNotice] = Expiries()

    def first(self) -> OwedNotice:
        """Of at least one, the one that is void first: mostly the one owed longest."""
        return cast(OwedNotice, self._expiries.first())

    def find(self, life: LifeKey, endpoint: DecodeEndpoint) -> OwedNotice | None:
        owed = self._by_room.get(life.room)
        if owed is not None:
            for one in owed:
                if one.endpoint == endpoint and one.life == life:
                    return one
        return None

    def older(self, key: LifeKey) -> list[OwedNotice]:
        """What older lives of the room are owed."""
        owed = self._by_room.get(key.room)
        if owed is None:
            return []
        return [one for one in owed if one.life.life < key.life and one.life.process == key.process]

    def add(self, owed: OwedNotice) -> None:
        room = owed.life.room
        siblings = self._by_room.get(room)
        if siblings is None:
            self._by_room[room] = [owed]
        else:
            siblings.append(owed)
        self.count += 1
        self._expiries.add(owed)

    def remove(self, ended: Sequence[OwedNotice]) -> None:
        """They have their outcome."""
        by_room = self._by_room
        for owed in ended:
            room = owed.life.room
            siblings = by_room[room]
            if len(siblings) == 1:
                del by_room[room]
            else:
                siblings.remove(owed)
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
