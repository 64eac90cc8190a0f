"""What one decode endpoint is owed, in order, and what is known of the connection to it."""

import enum
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile
from math import ceil

from sidecar.core.owed import NoticeState, OwedNotice
from sidecar.model import DecodeEndpoint

_PENDING = NoticeState.PENDING
_OFFERED = NoticeState.OFFERED
_HANDED_OFF = NoticeState.HANDED_OFF


class Connection(enum.Enum):
    ABSENT = "absent"  # no socket
    DOWN = "down"  # a socket without a handshaken peer
    UP = "up"


class EndpointQueue:
    """`pending`, `handed_off` and `taken_over` are disjoint and each in the order of service; offered notices stay in
    `pending`.

    `settles_from`: nothing settles on the strength of time before.
    `trust_until`: until then a connection may come up that makes what was taken over handed off.
    `session` is the last one that a rank has heard of, `heard_at` when. Before `watched_from` another process may have
    taken the endpoint's port without our knowing.
    `opened_at`: when it was last given a socket.
    `parcels`: how many of stock's own messages wait for this connection or for its staying up (`parcels.py`).
    `is_due` and `wake_at` are the outbox's notes: that it offers from this queue next, and when it looks here again.
    """

    __slots__ = (
        "connection",
        "endpoint",
        "handed_off",
        "has_been_up",
        "heard_at",
        "is_due",
        "opened_at",
        "parcels",
        "pending",
        "refusals",
        "retry_at",
        "session",
        "settles_from",
        "taken_over",
        "trust_until",
        "used_at",
        "wake_at",
        "watched_from",
    )

    def __init__(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.endpoint = endpoint
        self.connection = Connection.ABSENT
        self.has_been_up = False
        self.pending: dict[OwedNotice, None] = {}
        self.handed_off: dict[OwedNotice, None] = {}
        self.taken_over: dict[OwedNotice, None] = {}
        self.refusals = 0
        self.retry_at: float | None = None
        self.settles_from = now
        self.trust_until: float | None = None
        self.used_at = self.opened_at = now
        self.session: str | None = None
        self.heard_at = self.watched_from = now
        self.parcels = 0
        self.is_due = False
        self.wake_at: float | None = None

    @property
    def is_spare(self) -> bool:
        """Nobody needs the connection now."""
        return self.is_empty and not self.parcels

    def __len__(self) -> int:
        return len(self.pending) + len(self.handed_off) + len(self.taken_over)

    @property
    def is_empty(self) -> bool:
        """Nothing is owed here."""
        return not (self.handed_off or self.pending or self.taken_over)

    def __repr__(self) -> str:
        counts = f"pending={len(self.pending)} handed_off={len(self.handed_off)}"
        return f"<EndpointQueue {self.endpoint.host}:{self.endpoint.port} {self.connection.value} {counts}>"

    def notices(self) -> Iterator[OwedNotice]:
        return chain(self.taken_over, self.handed_off, self.pending)

    def oldest(self, count: int) -> list[OwedNotice]:
        return list(islice(self.notices(), count))

    def hear(self, session: str, now: float) -> None:
        self.session, self.heard_at = session, now

    @property
    def sure_session(self) -> str | None:
        """Whose connection this is. None: somebody else may have the port by now."""
        return self.session if self.heard_at >= self.watched_from else None

    def take_over(self, owed: OwedNotice, now: float, *, trust_s: float) -> None:
        """What a predecessor has handed off is so here as well if there is a connection, or will be one soon."""
        if self.connection is Connection.UP:
            self._count_from(owed, now)
        else:
            self.taken_over[owed] = None
            self.trust_until = self.trust_until or now + trust_s

    def take_offers(self, limit: int) -> list[OwedNotice]:
        """The next ones to try. Without a connection one is enough to learn whether there is one."""
        limit = limit if self.connection is Connection.UP else 1
        session = self.sure_session
        offers: list[OwedNotice] = []
        for owed in self.pending:
            if len(offers) >= limit:
                break
            if owed.state is _PENDING:
                owed.state = _OFFERED
                owed.form = owed.best_form if owed.session == session else owed.safe_form
                offers.append(owed)
        return offers

    def hand_off(self, offers: Sequence[OwedNotice], now: float) -> list[OwedNotice]:
        """Answers those of them that are still owed."""
        fresh: list[OwedNotice] = []
        pending, handed_off = self.pending, self.handed_off
        for owed in offers:
            if owed.state is not _OFFERED or owed.outcome is not None:
                continue
            fresh.append(owed)
            del pending[owed]
            handed_off[owed] = None
            owed.state = _HANDED_OFF
            owed.handed_off_at = owed.last_handed_off_at = now
            owed.hand_offs += 1
            if owed.hand_offs == 1:
                owed.first_handed_off_at = now
        return fresh

    def refuse(self, offers: Sequence[OwedNotice], now: float) -> bool:
        """The first of them was refused and the others were not tried. Whether that one is still owed."""
        for owed in offers:
            owed.state = _PENDING
        refused = offers[0]
        if refused.outcome is not None:
            return False
        refused.refusals += 1
        refused.refused_at = now
        return True

    def make_pending(self, owed: OwedNotice) -> None:
        for held in (self.handed_off, self.taken_over):
            if held.pop(owed, owed) is None:
                owed.state = _PENDING
                self.pending[owed] = None

    def make_all_pending(self) -> list[OwedNotice]:
        """What was handed off may be lost: it goes before what was never tried. Answers what has been made pending."""
        doubtful = [*self.taken_over, *self.handed_off]
        for owed in doubtful:
            owed.state = _PENDING
        self.pending = dict.fromkeys([*doubtful, *self.pending])
        self.handed_off, self.taken_over = {}, {}
        self.trust_until = None
        return doubtful

    def is_doubtful(self, settle_after_s: float, now: float) -> bool:
        """Of what was handed off nobody has said for long that there was a connection for it."""
        first = next(iter(self.handed_off), None)
        return first is not None and first.handed_off_at + settle_after_s <= now

    def discard(self, owed: OwedNotice) -> None:
        if owed.state is _HANDED_OFF:
            del self.handed_off[owed]
        elif owed.state is NoticeState.TAKEN_OVER:
            del self.taken_over[owed]
        else:
            del self.pending[owed]

    def come_up(self, now: float, *, trust_s: float) -> None:
        """Whatever is handed off, or was taken over, counts from here. What was heard `trust_s` ago was heard of the
        process that is connected now.
        """
        self.connection = Connection.UP
        self.watched_from = max(self.watched_from, now - trust_s)
        self.has_been_up = True
        self.refusals = 0
        self.retry_at = self.trust_until = None
        self.settles_from = now
        for owed in self.taken_over:
            self._count_from(owed, now)
        self.taken_over.clear()

    def go_down(self, now: float) -> None:
        self.connection = Connection.DOWN
        self.watched_from = now

    def restart_settling(self, now: float) -> None:
        """The connection takes no more: the peer may be frozen, and its heartbeat stuck behind what it has not read."""
        self.settles_from = now

    def take_held_up(self, settle_after_s: float, now: float) -> list[OwedNotice]:
        """Those handed off long enough ago on the connection that is still up. They are owed no more."""
        handed_off = self.handed_off
        if not handed_off or self.settles_from + settle_after_s > now:
            return []
        if next(reversed(handed_off)).handed_off_at + settle_after_s <= now:
            held = list(handed_off)
            self.handed_off = {}
        else:
            held = list(takewhile(lambda owed: owed.handed_off_at + settle_after_s <= now, handed_off))
            for owed in held:
                del handed_off[owed]
        if held:
            self.used_at = now
        return held

    def next_deadline(self, *, settle_after_s: float, settle_grain_s: float, idle_close_s: float) -> float | None:
        if self.is_empty:
            return None if self.parcels else self.idle_until(idle_close_s)
        at: float | None = None
        if self.handed_off:
            at = max(next(iter(self.handed_off)).handed_off_at, self.settles_from) + settle_after_s
            if settle_grain_s:
                at = ceil(at / settle_grain_s) * settle_grain_s
        if self.pending and self.retry_at is not None and (at is None or self.retry_at < at):
            at = self.retry_at
        if self.taken_over and self.trust_until is not None and (at is None or self.trust_until < at):
            at = self.trust_until
        return at

    def idle_until(self, idle_close_s: float) -> float:
        """When it is forgotten if nothing is owed there. Without a socket at once: else a flood of endpoints that find
        no place would stay."""
        return self.used_at if self.connection is Connection.ABSENT else self.used_at + idle_close_s

    def _count_from(self, owed: OwedNotice, now: float) -> None:
        owed.state = _HANDED_OFF
        owed.handed_off_at = now
        self.handed_off[owed] = None
