"""Lives of rooms at one prefill rank: who shook hands, what is still being written, how each one ended.

Pure: no locks, clock or sockets. `Rank` guards it with one lock and turns its answers into facts.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice
from math import inf

from sglang_hooks.life import Joined, Life, Verdict
from sglang_hooks.tombstones import Tombstone, Tombstones
from sidecar.model import DecodeEndpoint

__all__ = ["EVICTED_CAUSE", "Joined", "Life", "LifeTable", "Losses", "Verdict"]

OPEN_LIMIT = 65_536
EARLY_LIMIT = 65_536
RECORD_LIMIT = 4_096
TOMBSTONE_LIMIT = 262_144

_SEARCH = 64
"""How many of the oldest records are looked at for one that can be spared."""

EVICTED_CAUSE = "ended at prefill; the cause is no longer known"


@dataclass
class Losses:
    """What the bounds cost so far. None of it is silent. `owed_evicted`: of the records evicted, those with notices not
    yet reported settled: a sidecar that has not heard of them will not."""

    open_evicted: int = 0
    early_evicted: int = 0
    records_evicted: int = 0
    owed_evicted: int = 0
    tombstones_evicted: int = 0


class LifeTable:
    """Finds the life that a message about a room belongs to.

    At most one life of a room is open. A record is an ended life with all that a sidecar's successor must be told
    of it; a tombstone says only that a room has ended. Opening a room takes both out of reach of later handshakes.
    """

    def __init__(
        self, *, ttl_s: float, record_limit: int = RECORD_LIMIT, tombstone_limit: int = TOMBSTONE_LIMIT
    ) -> None:
        self.losses = Losses()
        self._ttl_s = ttl_s
        self._record_limit = record_limit
        self._last_number = 0
        self._open: OrderedDict[int, Life] = OrderedDict()
        self._early: OrderedDict[int, Life] = OrderedDict()
        self._records: dict[int, Life] = {}  # by life number
        self._ends: deque[Life] = deque()  # the same, oldest end first
        self._last_end: dict[int, Life] = {}  # by room; each is in _records
        self._tombstones = Tombstones(tombstone_limit)
        self._expires_from_s = inf  # nothing before

    def open(self, room: int) -> Life:
        life = self._early.pop(room, None) or self._next_life(room)
        life.previous = self._forget_end(room) or life.previous
        self._open.pop(room, None)
        self._open[room] = life
        if len(self._open) > OPEN_LIMIT:
            self._open.popitem(last=False)
            self.losses.open_evicted += 1
        return life

    def find_open(self, room: int) -> Life | None:
        return self._open.get(room)

    def is_served(self, room: int) -> bool:
        """A life is open that may still fail."""
        life = self._open.get(room)
        return life is not None and not life.succeeded

    def knows_an_end(self, room: int) -> bool:
        """Of no use for a decision but this: if not, it has not ended, as far as anybody here has said. Needs no lock
        around it."""
        return room in self._last_end or room in self._tombstones

    def has_ended(self, room: int, *, now: float) -> bool:
        """No life is open and the last one failed. A room that nobody has ended is early, not late."""
        if room in self._open:
            return False
        self.expire(now=now)
        return self.knows_an_end(room)

    def last_end(self, room: int, *, now: float) -> Life | None:
        """The ended life that a late message belongs to; an evicted record comes back from its tombstone. None: not
        ended."""
        if not self.has_ended(room, now=now):
            return None
        life = self._last_end.get(room)
        if life is None and (tombstone := self._tombstones.pop(room)) is not None:
            number = tombstone.number
            life = Life(room=room, number=number, ending=True, concluded=True, cause=EVICTED_CAUSE, concluded_at_s=now)
            self._keep_record(life)
        return life

    def meet_early(self, room: int, *, now: float) -> Life:
        """Decode comes before prefill's own request: the room's next life, which `open` gives later."""
        life = self._early.get(room)
        if life is None:
            life = self._early[room] = self._next_life(room)
            life.early_since_s = now
            if len(self._early) > EARLY_LIMIT:
                self._early.popitem(last=False)
                self.losses.early_evicted += 1
        return life

    def find_early(self, room: int) -> Life | None:
        return self._early.get(room)

    def accept(self, room: int, *, now: float) -> None:
        """A new request with that ended room is on its way here: the room is early again."""
        previous = self._forget_end(room)
        life = self._early.get(room)
        if life is None:
            life = self._early[room] = self._next_life(room)
            life.early_since_s = now
        life.previous = previous or life.previous

    def split_early(self, room: int, until_s: float) -> Life | None:
        """The early life as far as its endpoints came up to then, taken out. Those that came later stay, in a life of
        a new number."""
        life = self._early.get(room)
        if life is None:
            return None
        later = {endpoint: joined for endpoint, joined in life.endpoints.items() if joined.at_s > until_s}
        if len(later) == len(life.endpoints) and later:
            return None
        del self._early[room]
        if later:
            rest = self._early[room] = self._next_life(room)
            rest.early_since_s, rest.previous = life.early_since_s, life.number
            for endpoint, joined in later.items():
                rest.join(endpoint, joined.session, seq=joined.seq, at_s=joined.at_s)
                del life.endpoints[endpoint]
        return life

    def senderless(self, room: int) -> Life:
        """A life for a request that has ended before decode came."""
        return self._next_life(room)

    def leave_early(self, room: int, endpoint: DecodeEndpoint) -> Life | None:
        """The life that the endpoint gave up, if it was in an early one."""
        life = self._early.get(room)
        if life is None or life.endpoints.pop(endpoint, None) is None:
            return None
        if not life.endpoints:
            del self._early[room]
        return life

    def close(self, life: Life, *, now: float) -> None:
        """The life is over: kept as a record unless it succeeded. A newer life of the room is not disturbed."""
        if self._open.get(life.room) is life:
            del self._open[life.room]
        if not life.succeeded:
            self.expire(now=now)
            self._keep_record(life)

    def find(self, room: int, number: int) -> Life | None:
        """An open or recorded life."""
        life = self._open.get(room)
        if life is not None and life.number == number:
            return life
        return self._records.get(number)

    def lives(self) -> list[Life]:
        """All open and recorded lives, older first."""
        return sorted([*self._records.values(), *self._open.values()], key=lambda life: life.number)

    def take_unfinished(self) -> list[Life]:
        """Open and early lives. The early ones are out of the table with this."""
        early, self._early = self._early, OrderedDict()
        return [*self._open.values(), *early.values()]

    def early_lives(self, *, now: float) -> list[Life]:
        """Those that decode may still wait in; a sidecar need not know the others."""
        return [life for life in self._early.values() if life.early_since_s + self._ttl_s > now]

    def is_quiet(self, *, now: float) -> bool:
        """No request is here, and decode waits for none."""
        return not (self._open or self.early_lives(now=now))

    def counts(self) -> dict[str, int]:
        return {
            "open": len(self._open),
            "early": len(self._early),
            "records": len(self._ends),
            "tombstones": len(self._tombstones),
        }

    def expire(self, *, now: float) -> None:
        if now >= self._expires_from_s:
            self._expire(now)

    def _expire(self, now: float) -> None:
        while self._ends and self._ends[0].concluded_at_s + self._ttl_s <= now:
            self._drop_record(self._ends.popleft())
        self._tombstones.expire(now)
        oldest = self._ends[0].concluded_at_s + self._ttl_s if self._ends else inf
        self._expires_from_s = min(oldest, self._tombstones.expire_from_s())

    def _next_life(self, room: int) -> Life:
        self._last_number += 1
        return Life(room=room, number=self._last_number)

    def _forget_end(self, room: int) -> int | None:
        life = self._last_end.pop(room, None)
        tombstone = self._tombstones.pop(room)
        if life is not None:
            return life.number
        return tombstone.number if tombstone is not None else None

    def _keep_record(self, life: Life) -> None:
        self._records[life.number] = life
        self._ends.append(life)
        self._expires_from_s = min(self._expires_from_s, life.concluded_at_s + self._ttl_s)
        opened = self._open.get(life.room)
        is_last = opened is None or (opened.succeeded and opened.number < life.number)
        if is_last and life.room not in self._early:
            self._last_end[life.room] = life
        if len(self._ends) > self._record_limit:
            self._evict_record()

    def _evict_record(self) -> None:
        """Of the oldest one that owes nothing, if there is one: a late decode will still be told, though not the
        cause."""
        place = 0
        if self._ends[0].owes:
            place = next((place for place, life in enumerate(islice(self._ends, _SEARCH)) if not life.owes), 0)
            self.losses.owed_evicted += place == 0
        evicted = self._ends[place]
        del self._ends[place]
        self.losses.records_evicted += 1
        if self._drop_record(evicted):
            self._bury(evicted)

    def _drop_record(self, life: Life) -> bool:
        """It is out of the order of ends. Whether its room had seen nothing since."""
        del self._records[life.number]
        was_last = self._last_end.get(life.room) is life
        if was_last:
            del self._last_end[life.room]
        return was_last

    def _bury(self, life: Life) -> None:
        is_one_lost = self._tombstones.add(Tombstone(life.room, life.number, life.concluded_at_s + self._ttl_s))
        self.losses.tombstones_evicted += is_one_lost
