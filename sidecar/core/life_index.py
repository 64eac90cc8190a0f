"""Finds lives by rank process, room and number."""

from sidecar.core.room import Room


class LifeIndex:
    """Of each room the newest life is kept, and the older ones hang on it (`Room.older`, and `Room.has_newer_life`).
    Mostly there is only one.
    """

    def __init__(self) -> None:
        self._newest: dict[str, dict[int, Room]] = {}

    def newest(self, process: str, room: int) -> Room | None:
        rooms = self._newest.get(process)
        return None if rooms is None else rooms.get(room)

    def find(self, process: str, room: int, number: int) -> Room | None:
        rooms = self._newest.get(process)
        life = None if rooms is None else rooms.get(room)
        while life is not None and life.key.life != number:
            life = life.older
        return life

    def of_room(self, process: str, room: int) -> list[Room]:
        """The newest first."""
        lives: list[Room] = []
        life = self.newest(process, room)
        while life is not None:
            lives.append(life)
            life = life.older
        return lives

    def add(self, life: Room) -> None:
        """It is not there yet."""
        key = life.key
        rooms = self._newest.setdefault(key.process, {})
        newest = rooms.get(key.room)
        if newest is not None and newest.key.life > key.life:
            self._hang_below(newest, life)
            return
        if newest is not None:
            newest.has_newer_life = True
        life.older = newest
        rooms[key.room] = life

    def remove(self, life: Room) -> None:
        """It is there."""
        key = life.key
        rooms = self._newest[key.process]
        newest = rooms[key.room]
        if newest is not life:
            self._take_out_below(newest, life)
        elif life.older is not None:
            rooms[key.room] = life.older
            life.older.has_newer_life = False
        else:
            del rooms[key.room]
            if not rooms:
                del self._newest[key.process]
        life.older = None

    def _hang_below(self, newer: Room, life: Room) -> None:
        while newer.older is not None and newer.older.key.life > life.key.life:
            newer = newer.older
        life.older, newer.older = newer.older, life
        life.has_newer_life = True

    def _take_out_below(self, newer: Room, life: Room) -> None:
        while newer.older is not None and newer.older is not life:
            newer = newer.older
        newer.older = life.older
