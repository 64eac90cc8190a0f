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
        self._by_room: dict[tuple[str, int], list[OwedNotice]] = {}
        self._expiries: Expiries[OwedNotice] = Expiries()

    def first(self) -> OwedNotice:
        """Of at least one, the one that is void first: mostly the one owed longest."""
        return cast(OwedNotice, self._expiries.first())

    def find(self, life: LifeKey, endpoint: DecodeEndpoint) -> OwedNotice | None:
        for owed in self._by_room.get((life.process, life.room), ()):
            if owed.life == life and owed.endpoint == endpoint:
                return owed
        return None

    def older(self, key: LifeKey) -> list[OwedNotice]:
        """What older lives of the room are owed."""
        owed = self._by_room.get((key.process, key.room))
        return [one for one in owed if one.life.life < key.life] if owed else []

    def add(self, owed: OwedNotice) -> None:
        life = owed.life
        room = (life.process, life.room)
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
            life = owed.life
            room = (life.process, life.room)
            siblings = by_room[room]
            if len(siblings) == 1:
                del by_room[room]
            else:
                siblings.remove(owed)
        self.count -= len(ended)
        self._expiries.note_over(len(ended))

    def put_off(self, owed: OwedNotice, expires_at: float) -> None:
        """Until then, if that is later."""
        if expires_at > owed.expires_at:
            owed.expires_at = expires_at
            self._expiries.note_over()
            self._expiries.add(owed)

    def pop_expired(self, now: float) -> list[OwedNotice]:
        """They stay until they are removed."""
        return self._expiries.pop_due(now)

    def next_expiry(self) -> float | None:
        return self._expiries.next()
