"""What one decode rank has heard of its rooms from prefill, beside what sglang keeps: who has reported, the first
cause, and the connections over which the room was announced there. Pure; `DecodeHalf` guards it with one lock.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

ROOMS_LIMIT = 16_384
RANKS_LIMIT = 4_096
"""Prefill ranks that are known to have failed one room."""

CAUSE_LIMIT = 4_096
"""Characters of a cause that are kept. Anybody can write to the socket."""

Line = TypeVar("Line", bound=Hashable)


@dataclass(slots=True)
class _Room(Generic[Line]):
    reported: set[int] = field(default_factory=set)
    cause: str = ""
    http_status: int | None = None
    lines: dict[Line, None] = field(default_factory=dict)


class Rooms(Generic[Line]):
    def __init__(self, *, limit: int = ROOMS_LIMIT) -> None:
        self._rooms: OrderedDict[int, _Room[Line]] = OrderedDict()
        self._limit = limit
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._rooms)

    def open(self, room: int) -> None:
        """A new request uses the room: what was heard of an older one is not about it."""
        self._rooms.pop(room, None)
        self._rooms[room] = _Room()
        if len(self._rooms) > self._limit:
            self._rooms.popitem(last=False)
            self.evicted += 1

    def announce(self, room: int, line: Line) -> None:
        if (known := self._rooms.get(room)) is not None:
            known.lines[line] = None

    def report(self, room: int, prefill_rank: int) -> bool:
        """A prefill rank says that the room has failed. Answers whether that wants an acknowledgement: the first one
        in the room, which speaks for all ranks, and one that the same rank has to say again."""
        known = self._rooms.get(room)
        if known is None:
            return False
        is_wanted = not known.reported or prefill_rank in known.reported
        if len(known.reported) < RANKS_LIMIT:
            known.reported.add(prefill_rank)
        return is_wanted

    def keep(self, room: int, cause: str, http_status: int | None) -> None:
        """The first cause stands, and its status with it."""
        known = self._rooms.get(room)
        if known is not None and not known.cause:
            known.cause, known.http_status = cause[:CAUSE_LIMIT], http_status

    def reports(self, room: int) -> int:
        known = self._rooms.get(room)
        return 0 if known is None else len(known.reported)

    def cause(self, room: int) -> str:
        known = self._rooms.get(room)
        return "" if known is None else known.cause

    def http_status(self, room: int) -> int | None:
        known = self._rooms.get(room)
        return None if known is None else known.http_status

    def lines(self, room: int) -> tuple[Line, ...]:
        known = self._rooms.get(room)
        return () if known is None else tuple(known.lines)
