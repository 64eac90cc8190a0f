"""Finds lives by rank process, room and number."""

from typing import TypeAlias

from msgspec import Struct

from sidecar.core.keys import LifeKey
from sidecar.core.room import Room


class Tombstone(Struct, eq=False, gc=False):
    """Where a failed life was whose record has been evicted. Void from `expires_at` on."""

    key: LifeKey
    expires_at: float


Life: TypeAlias = Room | Tombstone


class LifeIndex:
    """Of each room the newest life is kept, and the older ones hang on it (`Room.older`, and `Room.has_newer_life`).
    Mostly there is only one; if that is evicted, its tombstone takes its place. Other tombstones lie aside: a room that
    is used again and again may have any number of them.
    """

    def __init__(self) -> None:
        self._newest: dict[str, dict[int, Life]] = {}
        self._aside: dict[LifeKey, Tombstone] = {}

    def newest(self, process: str, room: int) -> Room | None:
        life = self._newest.get(process, {}).get(room)
        return life if isinstance(life, Room) else None

    def find(self, process: str, room: int, number: int) -> Life | None:
        rooms = self._newest.get(process)
        life = None if rooms is None else rooms.get(room)
        while life is not None:
            if life.key.life == number:
                return life
            life = life.older if isinstance(life, Room) else None
        return self._aside.get(LifeKey(process, room, number)) if self._aside else None

    def of_room(self, process: str, room: int) -> list[Room]:
        """The newest first."""
        lives: list[Room] = []
        life = self.newest(process, room)
        while life is not None:
            lives.append(life)
            life = life.older
        return lives

    def add(self, life: Room) -> None:
        """It is not there yet, or has a tombstone that is void."""
        key = life.key
        rooms = self._newest.setdefault(key.process, {})
        newest = rooms.get(key.room)
        if self._aside:
            self._aside.pop(key, None)
        if isinstance(newest, Room):
            if newest.key.life > key.life:
                _hang_below(newest, life)
                return
            newest.has_newer_life = True
            life.older = newest
        elif newest is not None and newest.key != key:
            self._aside[newest.key] = newest
        rooms[key.room] = life

    def bury(self, life: Room, tombstone: Tombstone) -> None:
        """Like `remove`, and leaves that."""
        key = life.key
        rooms = self._newest[key.process]
        if rooms[key.room] is life and life.older is None:
            rooms[key.room] = tombstone
        else:
            self.remove(life)
            self._aside[key] = tombstone

    def remove(self, life: Room) -> None:
        """It is there."""
        key = life.key
        newest = self._newest[key.process][key.room]
        if isinstance(newest, Room) and newest is not life:
            _take_out_below(newest, life)
        elif life.older is not None:
            self._newest[key.process][key.room] = life.older
            life.older.has_newer_life = False
        else:
            self._vacate(key)
        life.older = None

    def remove_tombstone(self, tombstone: Tombstone) -> None:
        """If it is still there."""
        key = tombstone.key
        if self._newest.get(key.process, {}).get(key.room) is tombstone:
            self._vacate(key)
        elif self._aside.get(key) is tombstone:
            del self._aside[key]

    def _vacate(self, key: LifeKey) -> None:
        rooms = self._newest[key.process]
        del rooms[key.room]
        if not rooms:
            del self._newest[key.process]


def _hang_below(newer: Room, life: Room) -> None:
    while newer.older is not None and newer.older.key.life > life.key.life:
        newer = newer.older
    life.older, newer.older = newer.older, life
    life.has_newer_life = True


def _take_out_below(newer: Room, life: Room) -> None:
    while newer.older is not None and newer.older is not life:
        newer = newer.older
    newer.older = life.older
