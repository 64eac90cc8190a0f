"""What one decode endpoint is owed, in order, and what is known of the connection to it."""

import enum
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from sidecar.core.actions import NoticeKey, Outcome
from sidecar.model import DecodeEndpoint, Notice


class NoticeState(enum.Enum):
    PENDING = "pending"
    OFFERED = "offered"  # the shell has it and answers before anything else happens
    HANDED_OFF = "handed_off"


class Connection(enum.Enum):
    ABSENT = "absent"  # no socket
    DOWN = "down"  # a socket without a handshaken peer
    UP = "up"


class OwedNotice(Struct, eq=False):
    """`is_once`: a newer life of the room is open, so this may be handed off once and never again.

    `owed_since` is when the end and the handshake were both known here, in the host's monotonic seconds. Times of what
    has not happened are 0. `handed_off_at` is what settling counts from; the other times are for the story of a room.
    """

    key: NoticeKey
    notice: Notice
    session: str
    owed_since: float
    expires_at: float
    is_once: bool
    state: NoticeState = NoticeState.PENDING
    refusals: int = 0
    hand_offs: int = 0
    handed_off_at: float = 0.0
    refused_at: float = 0.0
    first_handed_off_at: float = 0.0
    last_handed_off_at: float = 0.0
    ended_at: float = 0.0
    outcome: Outcome | None = None

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None and self.outcome.is_settled

    def renew(self, other: "OwedNotice") -> None:
        """The same notice, owed afresh: hand-offs so far went to somebody who no longer waits."""
        self.session = other.session
        self.owed_since = other.owed_since
        self.is_once = other.is_once
        self.hand_offs = 0
        self.first_handed_off_at = 0.0


class EndpointQueue:
    """`pending` and `handed_off` are disjoint and each in the order of service; offered notices stay in `pending`."""

    def __init__(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.endpoint = endpoint
        self.connection = Connection.ABSENT
        self.has_been_up = False
        self.pending: OrderedDict[NoticeKey, OwedNotice] = OrderedDict()
        self.handed_off: OrderedDict[NoticeKey, OwedNotice] = OrderedDict()
        self.refusals = 0
        self.retry_at: float | None = None
        self.used_at = now

    def __len__(self) -> int:
        return len(self.pending) + len(self.handed_off)

    def __repr__(self) -> str:
        counts = f"pending={len(self.pending)} handed_off={len(self.handed_off)}"
        return f"<EndpointQueue {self.endpoint.host}:{self.endpoint.port} {self.connection.value} {counts}>"

    def notices(self) -> Iterator[OwedNotice]:
        return chain(self.handed_off.values(), self.pending.values())

    def oldest(self) -> OwedNotice:
        return next(self.notices())

    def take_offers(self, limit: int) -> list[OwedNotice]:
        """The next ones to try. Without a connection one is enough to learn whether there is one."""
        offers: list[OwedNotice] = []
        for owed in self.pending.values():
            if len(offers) >= (limit if self.connection is Connection.UP else 1):
                break
            if owed.state is NoticeState.PENDING:
                owed.state = NoticeState.OFFERED
                offers.append(owed)
        return offers

    def hand_off(self, owed: OwedNotice, now: float) -> None:
        del self.pending[owed.key]
        self.handed_off[owed.key] = owed
        owed.state = NoticeState.HANDED_OFF
        owed.handed_off_at = owed.last_handed_off_at = now
        owed.hand_offs += 1
        if owed.hand_offs == 1:
            owed.first_handed_off_at = now

    def make_pending(self, owed: OwedNotice) -> None:
        if self.handed_off.pop(owed.key, None) is not None:
            owed.state = NoticeState.PENDING
            self.pending[owed.key] = owed

    def make_all_pending(self) -> None:
        """What was handed off may be lost: it goes before what was never tried."""
        for owed in self.handed_off.values():
            owed.state = NoticeState.PENDING
        self.handed_off.update(self.pending)
        self.pending, self.handed_off = self.handed_off, OrderedDict()

    def discard(self, owed: OwedNotice) -> None:
        self.pending.pop(owed.key, None)
        self.handed_off.pop(owed.key, None)

    def restart_settling(self, now: float) -> None:
        """The connection takes no more: the peer may be frozen, and its heartbeat stuck behind what it has not read."""
        for owed in self.handed_off.values():
            owed.handed_off_at = now

    def held_up(self, settle_after_s: float, now: float) -> list[OwedNotice]:
        """Those handed off long enough ago on the connection that is still up."""
        held: list[OwedNotice] = []
        for owed in self.handed_off.values():
            if owed.handed_off_at + settle_after_s > now:
                break
            held.append(owed)
        return held

    def next_deadline(self, *, settle_after_s: float, idle_close_s: float) -> float | None:
        times = [self.retry_at] if self.pending and self.retry_at is not None else []
        if self.handed_off:
            times.append(next(iter(self.handed_off.values())).handed_off_at + settle_after_s)
        if not len(self):
            times.append(self.used_at + idle_close_s)
        return min(times, default=None)
