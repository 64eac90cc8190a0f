"""What is still owed to each decode endpoint, and when it is next due.

A notice is pending; each attempt is refused or handed off; it ends with an Outcome. Handed off is not delivered: what
was handed off on a connection that then goes down becomes pending again. Nothing is offered after it ended.

One endpoint's trouble stays in its own queue: work follows what is due, not what is owed.
"""

from collections import OrderedDict

from msgspec import Struct

from sidecar.core.actions import CloseEndpoint, Connect, LifeKey, NoticeKey, Outcome, SendNotice
from sidecar.core.backoff import RetrySchedule
from sidecar.core.connections import Connections
from sidecar.core.deadlines import Deadlines
from sidecar.core.endpoint_queue import Connection, EndpointQueue, NoticeState, OwedNotice
from sidecar.core.stats import Stats
from sidecar.model import DecodeEndpoint

OFFER_BATCH = 64
"""Notices offered to one endpoint before the next one has its turn."""


class OutboxLimits(Struct, frozen=True, kw_only=True):
    settle_after_s: float = 5.0
    idle_close_s: float = 600.0
    notices_per_endpoint: int = 8192
    notices_total: int = 131_072
    connections: int = 4096


class Outbox:
    def __init__(self, *, limits: OutboxLimits, schedule: RetrySchedule, stats: Stats) -> None:
        self._limits = limits
        self._schedule = schedule
        self._stats = stats
        self._owed: OrderedDict[NoticeKey, OwedNotice] = OrderedDict()
        self._by_room: dict[tuple[str, int], dict[NoticeKey, OwedNotice]] = {}
        self._connections = Connections(limit=limits.connections, stats=stats)
        self._expiries: Deadlines[NoticeKey] = Deadlines()
        self._wakes: Deadlines[DecodeEndpoint] = Deadlines()
        self._due: dict[DecodeEndpoint, EndpointQueue] = {}
        self._ended: list[OwedNotice] = []

    def __len__(self) -> int:
        return len(self._owed)

    def __repr__(self) -> str:
        return f"<Outbox owed={len(self._owed)} endpoints={len(self._connections)}>"

    @property
    def oldest_owed_since(self) -> float | None:
        """Approximate: the one owed first, by order of arrival here."""
        return next(iter(self._owed.values())).owed_since if self._owed else None

    @property
    def pending(self) -> int:
        return sum(len(queue.pending) for queue in self._connections.queues())

    def queues(self) -> list[EndpointQueue]:
        """Of the endpoints known."""
        return self._connections.queues()

    def change_limits(self, limits: OutboxLimits) -> None:
        """The number of connections stays. What is over another bound stays too, and ends as it would have; what was
        handed off settles by the new time when it is looked at next.
        """
        self._limits = limits

    def queue_of(self, endpoint: DecodeEndpoint) -> EndpointQueue | None:
        return self._connections.known(endpoint)

    def find(self, key: NoticeKey) -> OwedNotice | None:
        return self._owed.get(key)

    # -- what is owed

    def expect(self, endpoint: DecodeEndpoint, now: float) -> None:
        """A handshake: the endpoint may soon be owed something, and a connection that is up makes that quick."""
        queue = self._connections.find(endpoint, now)
        if queue.connection is Connection.ABSENT and queue.retry_at is None:
            self._open(queue, now)
        if queue.connection is Connection.ABSENT and not len(queue):
            self._connections.forget(queue, "limit")
        else:
            self._wake(queue)

    def owe(self, owed: OwedNotice, *, is_news: bool, now: float) -> bool:
        """Whether it was not owed before. Owed already: nothing, except that news of a handed off one makes it pending
        again.
        """
        known = self._owed.get(owed.key)
        queue = self._connections.find(owed.key.endpoint, now)
        if known is not None:
            if is_news:
                known.renew(owed)
                queue.make_pending(known)
                self._serve(queue, now)
            return False
        if len(queue) >= self._limits.notices_per_endpoint:
            self._end(queue.oldest(), Outcome.DROPPED, now)
        elif len(self._owed) >= self._limits.notices_total:
            self._end(next(iter(self._owed.values())), Outcome.DROPPED, now)
        self._stats.notices_owed += 1
        self._owed[owed.key] = queue.pending[owed.key] = owed
        self._by_room.setdefault((owed.key.life.process, owed.key.life.room), {})[owed.key] = owed
        self._expiries.set(owed.key, owed.expires_at)
        self._serve(queue, now)
        return True

    def end(self, key: NoticeKey, outcome: Outcome, now: float) -> None:
        owed = self._owed.get(key)
        if owed is not None:
            self._end(owed, outcome, now)

    def open_newer_life(self, key: LifeKey, now: float) -> None:
        """Older notices of the room that had a hand-off are never sent again; the others may be sent once."""
        for owed in self._older(key):
            if owed.hand_offs:
                self._end(owed, Outcome.SUPERSEDED, now)
            owed.is_once = True

    def void_older(self, key: LifeKey, endpoint: DecodeEndpoint, outcome: Outcome, now: float) -> None:
        """The endpoint spoke of this life of the room: whatever older ones owe it is void."""
        for owed in self._older(key):
            if owed.key.endpoint == endpoint:
                self._end(owed, outcome, now)

    def restarted(self, process: str, endpoint: DecodeEndpoint, session: str, now: float) -> None:
        """The endpoint serves a new session: what this process owes it under another one is void."""
        queue = self._connections.known(endpoint)
        for owed in list(queue.notices()) if queue else ():
            if owed.key.life.process == process and owed.session != session:
                self._end(owed, Outcome.RESTARTED, now)

    # -- what became of attempts and connections

    def handed_off(self, key: NoticeKey, now: float) -> None:
        queue = self._connections.known(key.endpoint)
        if queue is None:
            return
        owed = self._owed.get(key)
        if owed is not None and owed.state is NoticeState.OFFERED:
            self._hand_off(queue, owed, now)
        if queue.pending:
            self._due[key.endpoint] = queue
        self._wake(queue)  # the others settle after this one, which has its deadline

    def refused(self, key: NoticeKey, now: float) -> None:
        queue = self._connections.known(key.endpoint)
        if queue is None:
            return
        owed = self._owed.get(key)
        if owed is not None and owed.state is NoticeState.OFFERED:
            owed.state = NoticeState.PENDING
            owed.refusals += 1
            owed.refused_at = now
            self._stats.refusals += 1
        if queue.connection is Connection.UP:
            queue.restart_settling(now)
        self._due.pop(key.endpoint, None)
        if queue.retry_at is None:
            self._retry_later(queue, now)

    def endpoint_up(self, endpoint: DecodeEndpoint, now: float) -> None:
        """Everything pending is due at once. A hand-off is dated from here at the earliest."""
        queue = self._connections.known(endpoint)
        if queue is None or queue.connection is Connection.ABSENT:
            return
        if queue.connection is not Connection.UP:
            self._stats.endpoint_ups += 1
            self._stats.reconnects += queue.has_been_up
        queue.connection = Connection.UP
        queue.has_been_up = True
        queue.refusals = 0
        queue.retry_at = None
        if queue.pending:
            self._due[endpoint] = queue
        self._wake(queue)

    def endpoint_down(self, endpoint: DecodeEndpoint, now: float) -> None:
        queue = self._connections.known(endpoint)
        if queue is None or queue.connection is not Connection.UP:
            return
        queue.connection = Connection.DOWN
        self._stats.endpoint_downs += 1
        queue.make_all_pending()
        self._due.pop(endpoint, None)
        self._retry_later(queue, now)

    # -- time and output

    def handle_timer(self, now: float) -> None:
        for key in self._expiries.pop_due(now):
            self._end(self._owed[key], Outcome.EXPIRED, now)
        for endpoint in self._wakes.pop_due(now):
            queue = self._connections.known(endpoint)
            if queue is not None:
                self._attend(queue, now)

    def hurry(self, now: float) -> None:
        """Try everything pending now: there is no time left for back-off."""
        for queue in self._connections.queues():
            if queue.pending:
                queue.retry_at = now
                self._attend(queue, now)

    def next_deadline(self) -> float | None:
        times = [at for at in (self._expiries.next(), self._wakes.next()) if at is not None]
        return min(times, default=None)

    def take_actions(self) -> list[Connect | CloseEndpoint | SendNotice]:
        actions: list[Connect | CloseEndpoint | SendNotice] = [*self._connections.take_actions()]
        due, self._due = self._due, {}
        for endpoint, queue in due.items():
            offers = queue.take_offers(OFFER_BATCH)
            actions += [SendNotice(endpoint, owed.notice, owed.key) for owed in offers]
        return actions

    def take_ended(self) -> list[OwedNotice]:
        """Each has its outcome."""
        ended, self._ended = self._ended, []
        return ended

    # -- inside

    def _older(self, key: LifeKey) -> list[OwedNotice]:
        owed = self._by_room.get((key.process, key.room))
        return [one for one in owed.values() if one.key.life.life < key.life] if owed else []

    def _hand_off(self, queue: EndpointQueue, owed: OwedNotice, now: float) -> None:
        queue.hand_off(owed, now)
        self._stats.hand_offs += 1
        if owed.hand_offs == 1:
            self._stats.owed_to_hand_off.observe(now - owed.owed_since)
        else:
            self._stats.hand_offs_again += 1
        if owed.is_once:
            self._end(owed, Outcome.SUPERSEDED, now)

    def _serve(self, queue: EndpointQueue, now: float) -> None:
        """Something new is pending there."""
        if queue.connection is Connection.UP and queue.retry_at is None:
            self._due[queue.endpoint] = queue
            return  # the outcome comes before any deadline could
        if queue.connection is Connection.ABSENT and queue.retry_at is None:
            self._open(queue, now)
        elif queue.retry_at is None:
            self._retry_later(queue, now)
        self._wake(queue)

    def _open(self, queue: EndpointQueue, now: float) -> None:
        self._connections.open(queue)
        self._retry_later(queue, now)

    def _retry_later(self, queue: EndpointQueue, now: float) -> None:
        queue.refusals += 1
        queue.retry_at = now + self._schedule.delay(queue.refusals)
        self._wake(queue)

    def _attend(self, queue: EndpointQueue, now: float) -> None:
        """Whatever is due at this endpoint. Being called early is harmless."""
        if queue.connection is Connection.UP:
            for owed in queue.held_up(self._limits.settle_after_s, now):
                self._end(owed, Outcome.HELD_UP, now)
        if queue.retry_at is not None and queue.retry_at <= now:
            queue.retry_at = None
            if queue.pending and queue.connection is Connection.ABSENT:
                self._open(queue, now)
            elif queue.pending:
                self._due[queue.endpoint] = queue
        if not len(queue) and queue.used_at + self._limits.idle_close_s <= now:
            self._connections.forget(queue, "idle")
            return
        self._wake(queue)

    def _wake(self, queue: EndpointQueue) -> None:
        limits = self._limits
        at = queue.next_deadline(settle_after_s=limits.settle_after_s, idle_close_s=limits.idle_close_s)
        if at is not None:
            self._wakes.bring_forward(queue.endpoint, at)

    def _end(self, owed: OwedNotice, outcome: Outcome, now: float) -> None:
        key = owed.key
        queue = self._connections.find(key.endpoint, now)
        queue.discard(owed)
        del self._owed[key]
        self._expiries.clear(key)
        room = (key.life.process, key.life.room)
        siblings = self._by_room[room]
        del siblings[key]
        if not siblings:
            del self._by_room[room]
        self._stats.notices_ended[outcome.value] += 1
        if outcome.is_settled:
            self._stats.owed_to_settled.observe(now - owed.owed_since)
        owed.outcome, owed.ended_at = outcome, now
        self._ended.append(owed)
        self._wake(queue)
