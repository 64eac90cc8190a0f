"""Handshakes for a room that has ended, kept from the engine while the tokenizer process is asked: do they come late,
or has it accepted a new request with that room meanwhile? Pure.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.model import DecodeEndpoint

ROOM_LIMIT = 4_096
HELD_LIMIT = 256
"""Of one room. Each prefill rank hears from a few dozen decode ranks at most."""

BYTES_LIMIT = 64 * 1024 * 1024
"""Of all messages held. A long one lists the pages of its request: some 100 KB."""


@dataclass(frozen=True, slots=True)
class Held:
    """`endpoint` is None for a dummy, which hears nothing but counts for the engine. `frames`: the message."""

    room: int
    endpoint: DecodeEndpoint | None
    session: str
    frames: Sequence[bytes]
    at_s: float


class Doubts:
    def __init__(self, *, room_limit: int = ROOM_LIMIT) -> None:
        self._room_limit = room_limit
        self._by_room: OrderedDict[int, list[Held]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._by_room)

    def __contains__(self, room: int) -> bool:
        return room in self._by_room

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_room))

    def hold(self, held: Held) -> bool:
        """False: there is no place for more, so it must be judged without asking."""
        of_room = self._by_room.get(held.room)
        size = _size(held)
        if self._bytes + size > BYTES_LIMIT:
            return False
        if of_room is None:
            if len(self._by_room) >= self._room_limit:
                return False
            of_room = self._by_room[held.room] = []
        if len(of_room) >= HELD_LIMIT:
            return False
        of_room.append(held)
        self._bytes += size
        return True

    def take(self, room: int) -> list[Held]:
        """In the order in which they came."""
        taken = self._by_room.pop(room, [])
        self._bytes -= sum(map(_size, taken))
        return taken

    def give_up(self, room: int, endpoint: DecodeEndpoint) -> None:
        """Decode waits there no more."""
        for held in self.take(room):
            if held.endpoint != endpoint:
                self.hold(held)

    def older_than(self, at_s: float) -> list[int]:
        """Rooms whose first doubt came before then."""
        return [room for room, of_room in self._by_room.items() if of_room[0].at_s < at_s]


def _size(held: Held) -> int:
    return sum(map(len, held.frames))
