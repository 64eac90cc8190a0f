"""All lives of all rooms: finds, bounds and expires them, and holds the rules that span several lives of one room.

Across ranks nothing is superseded: another process's life of the same room is another request's half, or the same
request's at another rank.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import cast

from sidecar.core.deadlines import SLACK, Expiries, earliest
from sidecar.core.keys import LifeKey
from sidecar.core.life_index import Life, LifeIndex, Tombstone
from sidecar.core.limits import RoomLimits
from sidecar.core.owed import OwedNotice
from sidecar.core.room import (
    BuriedEnd,
    Claim,
    Effect,
    Handshake,
    Owe,
    Reaffirm,
    Room,
    RoomInput,
    RoomState,
)
from sidecar.core.stats import Stats
from sidecar.model import DecodeEndpoint, DecodeHandshake, RoomConcluded, TerminalStatus

# Members of an enum are looked up on its class, which costs a fact as much as a call does.
_OPEN, _FAILED, _SUCCEEDED = RoomState.OPEN, RoomState.FAILED, RoomState.SUCCEEDED
_SUCCESSFUL, _FAILURE, _UNDRAINED_FAILURE = RoomInput.SUCCESS, RoomInput.FAILURE, RoomInput.UNDRAINED_FAILURE
_SUCCESS = TerminalStatus.SUCCESS

GENERIC_CAUSE = "prefill gave the request up"
"""For an end whose record was evicted."""


class RoomTable:
    def __init__(self, *, limits: RoomLimits, stats: Stats) -> None:
        self._limits = limits
        self._stats = stats
        self._lives = LifeIndex()
        self._open: OrderedDict[Room, None] = OrderedDict()
        self._early: OrderedDict[Room, float] = OrderedDict()  # when those of _open expire that decode alone has
        self._records: deque[Room] = deque()  # oldest end first; those that are over are passed by
        self._record_count = 0
        self._expiries: Expiries[Room] = Expiries()
        self._succeeded: deque[Room] = deque()
        self._tombstones: deque[Tombstone] = deque()
        self._finished: list[Room] = []

    def __repr__(self) -> str:
        return f"<RoomTable open={len(self._open)} records={self._record_count} tombstones={len(self._tombstones)}>"

    @property
    def open_rooms(self) -> int:
        return len(self._open)

    @property
    def records(self) -> int:
        return self._record_count

    @property
    def record_limit(self) -> int:
        return self._limits.records

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def change_limits(self, limits: RoomLimits) -> None:
        """What is over the new bound is evicted at once."""
        self._limits = limits
        self._make_room()

    def find(self, key: LifeKey) -> Room | None:
        life = self._lives.find(key.process, key.room, key.life)
        return life if isinstance(life, Room) else None

    def lives_of(self, process: str, room: int) -> list[Room]:
        """The oldest first."""
        return self._lives.of_room(process, room)[::-1]

    # -- facts

    def opened(self, key: LifeKey, now: float, *, traceparent: str = "") -> bool:
        """Whether that is news."""
        life = self._lives.find(key.process, key.room, key.life)
        if _is_buried(life, now):
            return False
        room = life if isinstance(life, Room) else self._add(key, now)
        self._early.pop(room, None)
        is_news = not room.opened_at_s
        room.opened_at_s = room.opened_at_s or now
        room.traceparent = traceparent
        return is_news

    def handshake(
        self,
        key: LifeKey,
        endpoint: DecodeEndpoint,
        fact: DecodeHandshake,
        *,
        is_replay: bool,
        ttl_s: float,
        now: float,
    ) -> list[Claim]:
        """A life that nobody opens is forgotten after `ttl_s`: decode has given up by then. `endpoint`: the fact's."""
        lives = self._lives.of_room(key.process, key.room)
        if any(room.key.life > key.life and room.shaken(endpoint) is not None for room in lives):
            self._stats.handshakes_superseded += 1
            return []
        self._void_older(key, endpoint, fact.seq)
        life = self._lives.find(key.process, key.room, key.life)
        if _is_buried(life, now):
            if is_replay:
                return [Reaffirm(endpoint, fact.seq)]
            return [Owe(Handshake(endpoint, fact.session, fact.seq, handed_off=fact.handed_off), is_news=True)]
        known = life if isinstance(life, Room) else self._add_early(key, ttl_s, now)
        if not known.has_place_for(endpoint):
            self._stats.handshakes_over_limit += 1
            return []
        return known.handshake(endpoint, fact.session, fact.seq, at_s=now, handed_off=fact.handed_off)

    def aborted(self, key: LifeKey, endpoint: DecodeEndpoint, seq: int, now: float) -> list[Claim]:
        self._void_older(key, endpoint, seq)
        room = self.find(key)
        if room is None or not room.has_place_for(endpoint):
            return []
        return room.aborted(endpoint, seq, at_s=now)

    def acknowledged(self, key: LifeKey, endpoint: DecodeEndpoint, seq: int) -> list[Claim]:
        room = self.find(key)
        return [] if room is None else room.acknowledged(endpoint, seq)

    def concluded(self, process: str, fact: RoomConcluded, ttl_s: float, now: float) -> Room | None:
        """The life, if that has changed it."""
        at_s = fact.at_s if fact.at_s <= now else now
        expires_at = at_s + ttl_s
        life = self._lives.find(process, fact.room, fact.life)
        room = life if isinstance(life, Room) else None
        if fact.status is _SUCCESS:
            given = _SUCCESSFUL
        elif expires_at <= now:
            self._conclude_expired(room)
            return None
        else:
            given = _FAILURE if fact.drained else _UNDRAINED_FAILURE
        if room is None:
            if _is_buried(life, now):
                return None
            room = self._add(LifeKey(process, fact.room, fact.life), now)
        before = room.state
        effect = room.conclude(given, fact.cause, at_s, expires_at, http_status=fact.http_status)
        if room.state is before:
            self._stats.rooms_contradicted += effect is Effect.CONTRADICTION
            return None
        room.end_seq = fact.seq
        room.end_began_at_s = fact.began_at_s if 0.0 < fact.began_at_s <= at_s else 0.0
        if before is _OPEN:
            del self._open[room]
            self._early.pop(room, None)
        if room.state is _SUCCEEDED:
            self._keep_success(room)
        else:
            self._keep_failure(room, was_open=before is _OPEN)
        return room

    def note_ended(self, ended: Sequence[OwedNotice]) -> None:
        for owed in ended:
            life = owed.life
            if isinstance(room := self._lives.find(life.process, life.room, life.life), Room):
                room.note_ended(owed)
                if room.finish():
                    self._finished.append(room)

    def note_finished(self, room: Room) -> None:
        """Called whenever it may be so."""
        if room.finish():
            self._finished.append(room)

    def take_finished(self) -> list[Room]:
        """Lives that ended without success and, since the last call, owe nothing any more or were evicted."""
        finished, self._finished = self._finished, []
        return finished

    def end_of(self, key: LifeKey, now: float) -> Room | BuriedEnd:
        """For a life that has failed, drained or not, or is buried."""
        life = cast("Life", self._lives.find(key.process, key.room, key.life))
        if isinstance(life, Room):
            return life
        newest = self._lives.newest(key.process, key.room)
        has_newer_life = newest is not None and newest.key.life > key.life
        return BuriedEnd(GENERIC_CAUSE, now, life.expires_at, has_newer_life)

    def open_of(self, process: str) -> list[LifeKey]:
        return [room.key for room in self._open if room.key.process == process]

    def has_open(self, process: str, room: int) -> bool:
        return any(life.state is _OPEN for life in self._lives.of_room(process, room))

    def forget_open(self, process: str) -> int:
        """How many open lives of that process there were."""
        gone = [room for room in self._open if room.key.process == process]
        for room in gone:
            self._forget_open(room)
        return len(gone)

    # -- time

    def handle_timer(self, now: float) -> None:
        for room in self._expiries.pop_due(now):
            self._stats.records_expired += 1
            self._record_count -= 1
            self._bury(room)
        self._pass_by_expired()
        while self._early and next(iter(self._early.values())) <= now:
            self._stats.open_rooms_dropped["early"] += 1
            self._forget_open(next(iter(self._early)))
        while self._tombstones and self._tombstones[0].expires_at <= now:
            self._lives.remove_tombstone(self._tombstones.popleft())

    def next_deadline(self) -> float | None:
        early = next(iter(self._early.values())) if self._early else None
        return earliest((self._expiries.next(), early))

    # -- inside

    def _void_older(self, key: LifeKey, endpoint: DecodeEndpoint, seq: int) -> None:
        """The endpoint spoke of this life by fact `seq`: by then it waited in no older one any more."""
        for room in self._lives.of_room(key.process, key.room):
            if room.key.life < key.life:
                room.settled(endpoint, seq)

    def _conclude_expired(self, room: Room | None) -> None:
        """A replay brought back a life whose record has had its time."""
        if room is not None and room.state is RoomState.OPEN:
            self._stats.records_expired += 1
            self._forget_open(room)

    def _add(self, key: LifeKey, now: float) -> Room:
        if len(self._open) >= self._limits.open_rooms:
            self._stats.open_rooms_dropped["limit"] += 1
            self._forget_open(next(iter(self._open)))
        room = Room(key, now)
        self._open[room] = None
        self._lives.add(room)
        return room

    def _add_early(self, key: LifeKey, ttl_s: float, now: float) -> Room:
        room = self._add(key, now)
        self._early[room] = now + ttl_s
        return room

    def _keep_success(self, room: Room) -> None:
        self._stats.rooms_succeeded += 1
        self._succeeded.append(room)
        if len(self._succeeded) > self._limits.succeeded:
            self._bury(self._succeeded.popleft())

    def _keep_failure(self, room: Room, *, was_open: bool) -> None:
        if room.state is _FAILED:
            self._stats.rooms_failed += 1
        else:
            self._stats.rooms_undrained += 1
        if not was_open:  # it drained late: a record already
            return
        self._expiries.add(room)
        self._records.append(room)
        self._record_count += 1
        self._make_room()

    def _make_room(self) -> None:
        """Of too many records the oldest are evicted, not those that expire first: ranks differ in how long theirs are
        kept. Some more at once: one after the other costs twice as much, memory that has not been touched for long is
        let go faster together.
        """
        limit = self._limits.records
        if self._record_count > limit:
            self._evict(self._take_oldest(self._record_count - limit + limit // 64))

    def _take_oldest(self, count: int) -> list[Room]:
        records = self._records
        oldest: list[Room] = []
        while len(oldest) < count:
            if not (room := records.popleft()).is_over:
                oldest.append(room)
        self._record_count -= count
        return oldest

    def _evict(self, rooms: list[Room]) -> None:
        """What is owed for them already stays owed; a late handshake is still answered, though without the true
        cause."""
        lives, tombstones = self._lives, self._tombstones
        for room in rooms:
            room.is_over = True
            if room.owed:
                self._finished.append(room)
            if room.state is not _FAILED:
                lives.remove(room)
                continue
            tombstone = Tombstone(room.key, room.expires_at)
            lives.bury(room, tombstone)
            tombstones.append(tombstone)
        self._expiries.note_over(len(rooms))
        self._stats.records_evicted_early += len(rooms)
        while len(tombstones) > self._limits.tombstones:
            self._stats.tombstones_lost += 1
            self._lives.remove_tombstone(self._tombstones.popleft())

    def _pass_by_expired(self) -> None:
        """Ranks differ in how long theirs are kept: mostly the oldest have expired, else all are looked through."""
        records = self._records
        while records and records[0].is_over:
            records.popleft()
        if len(records) > 2 * self._record_count + SLACK:
            self._records = deque([room for room in records if not room.is_over])

    def _forget_open(self, room: Room) -> None:
        del self._open[room]
        self._early.pop(room, None)
        self._bury(room)

    def _bury(self, room: Room) -> None:
        """It is found no more."""
        room.is_over = True
        self._lives.remove(room)


def _is_buried(life: Life | None, now: float) -> bool:
    return isinstance(life, Tombstone) and life.expires_at > now
