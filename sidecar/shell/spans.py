"""One span for each life of a room, made when it is over from what the core keeps of it.

A life that ended without success is over when nothing is owed for it any more; a late handshake makes it owe again,
and that is a span of its own below the first. The span of a life has the same numbers wherever and however often it
is made, so that of a successor replaces that of its predecessor.
"""

import asyncio
import hashlib
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

from msgspec import Struct

from sidecar.core.keys import LifeKey
from sidecar.core.notifier import Notifier
from sidecar.core.room import Room, RoomState
from sidecar.model import RoomConcluded, TerminalStatus, Upward
from sidecar.shell.story import happened

WAITING_LIMIT = 4096
"""Lives that wait to be made into spans; more are counted and dropped."""

REPORTED_LIMIT = 8192
"""Lives that are remembered as told of, to know what is new about one that owed again."""

AT_ONCE = 8
PAUSE_S = 0.005
"""A span costs the loop some 0.1 ms. So many are made in a row, then the loop has its turn."""

ENDPOINT_LIMIT = 16
EVENT_LIMIT = 64
CAUSE_LIMIT = 200

LIFE, AGAIN = "pd_sidecar.life", "pd_sidecar.owed_again"

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)

Attribute: TypeAlias = str | int | bool | list[str]


class Parent(Struct, frozen=True):
    trace_id: int
    span_id: int
    flags: int


class Event(Struct, frozen=True):
    at_ns: int
    name: str
    endpoint: str


class LifeSpan(Struct, frozen=True, kw_only=True):
    """`failure` is the cause of an end without success, else ""."""

    name: str
    trace_id: int
    span_id: int
    parent: Parent | None
    began_at_ns: int
    ended_at_ns: int
    failure: str
    attributes: dict[str, Attribute]
    events: list[Event]


class LifeSpans:
    """`record` takes a span and must not wait. Times come from `clock`; `wall_ns` is the calendar's at that moment."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        record: Callable[[LifeSpan], None],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._notifier = notifier
        self._record = record
        self._loop = loop
        self._clock = clock
        self._wall_ns = wall_ns
        self._waiting: deque[Room] = deque()
        self._reported: OrderedDict[LifeKey, float] = OrderedDict()
        self._turn: asyncio.TimerHandle | None = None

    def taken(self, stream: int, messages: Sequence[Upward]) -> None:
        """What a rank said, after the core took it: successes are over with that."""
        rank = self._notifier.ranks.on(stream)
        if rank is None:
            return
        for fact in messages:
            if isinstance(fact, RoomConcluded) and fact.status is TerminalStatus.SUCCESS:
                room = self._notifier.rooms.find(LifeKey(rank.hello.process, fact.room, fact.life))
                if room is not None and room.state is RoomState.SUCCEEDED and room.end_seq == fact.seq:
                    self.report([room])

    def report(self, finished: Sequence[Room]) -> None:
        for room in finished:
            if len(self._waiting) < WAITING_LIMIT:
                self._waiting.append(room)
            else:
                self.counts["dropped"] += 1
        if self._waiting and self._turn is None:
            self._turn = self._loop.call_later(0, self._take_turn)

    def finish(self) -> None:
        """Makes all that wait."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        while self._waiting:
            self._make(self._waiting.popleft())

    def _take_turn(self) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._make(self._waiting.popleft())
        self._turn = self._loop.call_later(PAUSE_S, self._take_turn) if self._waiting else None

    def _make(self, room: Room) -> None:
        now = self._clock()
        told_until_s = self._reported.pop(room.key, 0.0)
        self._reported[room.key] = now
        if len(self._reported) > REPORTED_LIMIT:
            self._reported.popitem(last=False)
        began_ns = self._wall_ns() - int(now * 1e9)
        self._record(span_of(self._notifier, room, told_until_s=told_until_s, zero_ns=began_ns))
        self.counts["made"] += 1


def span_of(notifier: Notifier, room: Room, *, told_until_s: float, zero_ns: int) -> LifeSpan:
    """Of what is new since `told_until_s`. `zero_ns` is the calendar's time at 0 of the core's clock."""
    happenings = sorted((one for one in happened(notifier, room) if one[0] > told_until_s), key=lambda one: one[0])
    times = [at for at, _, _ in happenings] or [room.concluded_at_s]
    parent = _parent_of(room)
    trace_id = parent.trace_id if parent else _number(16, "room", room.key.room)
    life_id = _number(8, "life", *_names(room))
    if told_until_s:
        parent = Parent(trace_id, life_id, parent.flags if parent else 1)
    return LifeSpan(
        name=AGAIN if told_until_s else LIFE,
        trace_id=trace_id,
        span_id=_number(8, "again", *_names(room), times[0]) if told_until_s else life_id,
        parent=parent,
        began_at_ns=zero_ns + int(times[0] * 1e9),
        ended_at_ns=zero_ns + int(times[-1] * 1e9),
        failure="" if room.state is RoomState.SUCCEEDED else room.cause[:CAUSE_LIMIT],
        attributes=_attributes(notifier, room),
        events=[
            Event(zero_ns + int(at * 1e9), text, f"{endpoint.host}:{endpoint.port}" if endpoint else "")
            for at, text, endpoint in happenings[:EVENT_LIMIT]
        ],
    )


def _attributes(notifier: Notifier, room: Room) -> dict[str, Attribute]:
    """`bootstrap_room` as sglang's own spans have it."""
    rank = notifier.ranks.of(room.key.process)
    told = room.told
    attributes: dict[str, Attribute] = {
        "bootstrap_room": hex(room.key.room),
        "pd_sidecar.room": room.key.room,
        "pd_sidecar.life": room.key.life,
        "pd_sidecar.process": room.key.process,
        "pd_sidecar.state": room.state.value,
        "pd_sidecar.endpoints": [
            f"{one.endpoint.host}:{one.endpoint.port}" for one in islice(room.handshakes, ENDPOINT_LIMIT)
        ],
        "pd_sidecar.endpoint_count": room.endpoint_count,
        "pd_sidecar.outcomes": sorted({owed.outcome.value for owed in told if owed.outcome}),
        "pd_sidecar.hand_offs": sum(owed.hand_offs for owed in told),
        "pd_sidecar.refusals": sum(owed.refusals for owed in told),
    }
    if rank is not None:
        attributes |= {"pd_sidecar.engine": rank.hello.engine, "pd_sidecar.prefill_rank": rank.hello.prefill_rank}
    if room.cause:
        attributes["pd_sidecar.cause"] = room.cause[:CAUSE_LIMIT]
    if room.http_status:
        attributes["http.response.status_code"] = room.http_status
    return attributes


def _parent_of(room: Room) -> Parent | None:
    """sglang's span of the request, if it is one."""
    match = _TRACEPARENT.fullmatch(room.traceparent)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return Parent(trace_id, span_id, flags) if trace_id and span_id else None


def _names(room: Room) -> tuple[str, int, int]:
    return room.key.process, room.key.room, room.key.life


def _number(size_bytes: int, *names: object) -> int:
    """Never 0, which stands for no number."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return int.from_bytes(digest[:size_bytes]) or 1
