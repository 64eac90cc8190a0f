"""What is still owed to each decode endpoint, and when it is next due.

A notice is pending; each attempt is refused or handed off; it ends with an Outcome. Handed off is not delivered: what
was handed off on a connection that then goes down becomes pending again. Nothing is offered after it ended.

One endpoint's trouble stays in its own queue: work follows what is due, not what is owed.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest

from sidecar.core.actions import Attempt, CloseEndpoint, Connect, SendNotices
from sidecar.core.backoff import RetrySchedule
from sidecar.core.connections import Connections
from sidecar.core.deadlines import earliest
from sidecar.core.endpoint_queue import Connection, EndpointQueue
from sidecar.core.hand_offs import HandOffReports
from sidecar.core.keys import LifeKey, NoticeKey, Outcome
from sidecar.core.ledger import Ledger
from sidecar.core.limits import OutboxLimits
from sidecar.core.owed import NoticeState, OwedNotice
from sidecar.core.stats import Stats
from sidecar.core.turns import Turns
from sidecar.model import DecodeEndpoint

_UP = Connection.UP
_TAKEN_OVER = NoticeState.TAKEN_OVER


class Outbox:
    """`hand_offs` collects what ranks are to be told of."""

    def __init__(self, *, limits: OutboxLimits, schedule: RetrySchedule, stats: Stats) -> None:
        self.hand_offs = HandOffReports()
        self._limits = limits
        self._stats = stats
        self._ledger = Ledger()
        self._least_limit = min(limits.notices_total, limits.notices_per_endpoint)
        self._connections = Connections(limit=limits.connections, stats=stats)
        self._turns = Turns(self._connections, schedule=schedule, limits=limits)
        self._held: list[list[OwedNotice]] = []
        self._ended: list[OwedNotice] = []

    def __len__(self) -> int:
        return self._ledger.count

    def __repr__(self) -> str:
        return f"<Outbox owed={self._ledger.count} endpoints={len(self._connections)}>"

    @property
    def oldest_owed_since(self) -> float | None:
        """Approximate: of the one that is void first."""
        return self._ledger.first().owed_since if self._ledger.count else None

    @property
    def pending(self) -> int:
        """What was taken over is not: it needs no attempt as long as nothing speaks against it."""
        return sum(len(queue.pending) for queue in self._connections.queues())

    def queues(self) -> list[EndpointQueue]:
        return self._connections.queues()

    def change_limits(self, limits: OutboxLimits) -> None:
        """The number of connections stays. What is over another bound stays too, and ends as it would have; what was
        handed off settles by the new time when it is looked at next.
        """
        self._limits = limits
        self._least_limit = min(limits.notices_total, limits.notices_per_endpoint)
        self._turns.limits = limits

    def queue_of(self, endpoint: DecodeEndpoint) -> EndpointQueue | None:
        return self._connections.known(endpoint)

    def find(self, key: NoticeKey) -> OwedNotice | None:
        return self._ledger.find(key.life, key.endpoint)

    # -- what is owed

    def familiar(self, endpoint: DecodeEndpoint) -> DecodeEndpoint:
        """The same one as the object that is known here: thousands of rooms then share it, and it is found faster."""
        queue = self._connections.known(endpoint)
        return endpoint if queue is None else queue.endpoint

    def expect(self, endpoint: DecodeEndpoint, session: str, now: float) -> None:
        """A handshake: the endpoint may soon be owed something, and a connection that is up makes that quick."""
        self.reach(endpoint, now).hear(session, now)

    def reach(self, endpoint: DecodeEndpoint, now: float) -> EndpointQueue:
        """With a connection, or ABSENT and not known any more: there is no socket for it."""
        queue = self._connections.find(endpoint, now)
        if queue.connection is Connection.ABSENT and (queue.retry_at is None or queue.retry_at <= now):
            self._turns.open(queue, now)
        if queue.connection is Connection.ABSENT and queue.is_spare:
            self._connections.forget(queue, "limit")
        return queue

    def release(self, queue: EndpointQueue, now: float) -> None:
        """Its last parcel has ended: it may be closed when idle."""
        queue.used_at = now
        self._turns.wake(queue)

    def owe(self, owed: OwedNotice, *, is_news: bool, now: float) -> bool:
        """Whether it was not owed before. Owed already: nothing, except that news of a handed off one makes it pending
        again.
        """
        ledger, endpoint = self._ledger, owed.endpoint
        known = ledger.find(owed.life, endpoint)
        queue = self._connections.find(endpoint, now)
        if known is not None:
            self._owe_again(known, owed, queue, is_news, now)
            return False
        if ledger.count >= self._least_limit:
            self._make_room(queue, now)
        self._stats.notices_owed += 1
        ledger.add(owed)
        if owed.state is _TAKEN_OVER:
            queue.take_over(owed, now, trust_s=self._limits.trust_s)
        else:
            queue.pending[owed] = None
        if not queue.is_due:
            self._turns.serve(queue, now)
        return True

    def end(self, key: NoticeKey, outcome: Outcome, now: float) -> None:
        owed = self.find(key)
        if owed is not None:
            self._end(owed, outcome, now)

    def open_newer_life(self, key: LifeKey, now: float) -> None:
        """Older notices of the room that had a hand-off are never sent again; the others may be sent once."""
        for owed in self._ledger.older(key):
            if owed.hand_offs or owed.is_reported:
                self._end(owed, Outcome.SUPERSEDED, now)
            owed.is_once = True

    def void_older(self, key: LifeKey, endpoint: DecodeEndpoint, seq: int, outcome: Outcome, now: float) -> None:
        """The endpoint spoke of this life of the room by fact `seq`: whatever older ones owed it by then is void."""
        for owed in self._ledger.older_of(key, endpoint):
            if owed.seq < seq:
                self._end(owed, outcome, now)

    def restarted(self, process: str, endpoint: DecodeEndpoint, session: str, now: float) -> None:
        """The endpoint serves a new session: what this process owes it under another one is void."""
        queue = self._connections.known(endpoint)
        if queue is None:
            return
        queue.hear(session, now)
        for owed in list(queue.notices()):
            if owed.life.process == process and owed.session != session:
                self._end(owed, Outcome.RESTARTED, now)

    # -- what became of attempts and connections

    def attempted(self, attempts: Sequence[Attempt], now: float) -> None:
        """At different endpoints, all by this time."""
        known, settles_at = self._connections.known, now + self._limits.settle_after_s
        all_fresh: list[OwedNotice] = []
        for tried, handed_off in attempts:
            queue, offers = known(tried.endpoint), tried.offers
            if queue is None:
                continue
            if handed_off and (fresh := queue.hand_off(offers[:handed_off], now)):
                queue.refusals = 0
                self.hand_offs.note(queue, fresh, now)
                all_fresh += fresh
            if handed_off < len(offers):
                self._note_refusal(queue, queue.refuse(offers[handed_off:], now), now)
            elif queue.pending:
                self._turns.make_due(queue)
            if queue.wake_at is None or queue.wake_at > settles_at:
                self._turns.wake(queue)
        if all_fresh:
            self._note_hand_offs(all_fresh, now)

    def endpoint_up(self, endpoint: DecodeEndpoint, now: float) -> None:
        """Everything pending is due at once. A hand-off is dated from here at the earliest."""
        queue = self._connections.known(endpoint)
        if queue is None or queue.connection is Connection.ABSENT:
            return
        if queue.connection is not _UP:
            self._stats.endpoint_ups += 1
            self._stats.reconnects += queue.has_been_up
        queue.come_up(now, trust_s=self._limits.trust_s)
        if queue.pending:
            self._turns.make_due(queue)
        self._turns.wake(queue)

    def endpoint_down(self, endpoint: DecodeEndpoint, now: float) -> None:
        queue = self._connections.known(endpoint)
        if queue is None or queue.connection is not _UP:
            return
        queue.go_down(now)
        self._stats.endpoint_downs += 1
        self.hand_offs.take_back(queue.make_all_pending())
        self._turns.retry_later(queue, now)

    def stalled(self, now: float) -> None:
        """Connections may have ended while this process stood still, and nobody has said so yet."""
        for queue in self._connections.queues():
            queue.restart_settling(now)

    # -- time and output

    def handle_timer(self, now: float) -> None:
        while (owed := self._ledger.expired(now)) is not None:
            self._end(owed, Outcome.EXPIRED, now)
        for queue in self._turns.pop_woken(now):
            if self._connections.known(queue.endpoint) is queue:
                self._attend(queue, now)
        self._settle(now)
        self.hand_offs.handle_timer(now)

    def hurry(self, now: float) -> None:
        """Try everything pending now: there is no time left for back-off."""
        for queue in self._connections.queues():
            if queue.pending:
                queue.retry_at = now
                self._attend(queue, now)
        self._settle(now)

    def next_deadline(self) -> float | None:
        return earliest((self._ledger.next_expiry(), self._turns.next_deadline(), self.hand_offs.next_deadline()))

    def take_actions(self) -> list[Connect | CloseEndpoint | SendNotices]:
        return [*self._connections.take_actions(), *self._turns.take_offers()]

    def take_ended(self) -> list[OwedNotice]:
        """Each has its outcome."""
        ended, self._ended = self._ended, []
        return ended

    # -- inside

    def _owe_again(self, known: OwedNotice, owed: OwedNotice, queue: EndpointQueue, is_news: bool, now: float) -> None:
        if is_news:
            known.renew(owed)
            queue.make_pending(known)
            self._turns.serve(queue, now)
        elif owed.is_reported and not known.is_reported:
            self.hand_offs.contradict(known)
        self._ledger.put_off(known, owed.expires_at)

    def _make_room(self, queue: EndpointQueue, now: float) -> None:
        limit = self._limits.notices_per_endpoint
        if len(queue) >= limit:
            for owed in queue.oldest(1 + limit // 128):  # some more at once: to find the oldest is dear
                self._close(owed, queue, Outcome.DROPPED, now)
        elif self._ledger.count >= self._limits.notices_total:
            self._end(self._ledger.first(), Outcome.DROPPED, now)

    def _note_hand_offs(self, handed_off: list[OwedNotice], now: float) -> None:
        stats = self._stats
        waits_s: list[float] = []
        stats.hand_offs_by_form.update([owed.form for owed in handed_off])
        for owed in handed_off:
            if owed.hand_offs == 1:
                waits_s.append(now - owed.owed_since)
            if owed.is_once:
                self._end(owed, Outcome.SUPERSEDED, now)
        stats.hand_offs += len(handed_off)
        stats.hand_offs_again += len(handed_off) - len(waits_s)
        stats.owed_to_hand_off.observe(waits_s)

    def _note_refusal(self, queue: EndpointQueue, is_still_owed: bool, now: float) -> None:
        self._stats.refusals += is_still_owed
        if queue.connection is _UP:
            queue.restart_settling(now)
        queue.is_due = False
        if queue.retry_at is None:
            self._turns.retry_later(queue, now)

    def _attend(self, queue: EndpointQueue, now: float) -> None:
        """Whatever is due at this endpoint. Being called early is harmless."""
        if queue.connection is _UP:
            if held := queue.take_held_up(self._limits.settle_after_s, now):
                self._held.append(held)
        elif self._is_in_doubt(queue, now):
            self.hand_offs.take_back(queue.make_all_pending())
            self._turns.serve(queue, now)
        self._turns.retry_if_due(queue, now)
        if queue.is_spare and queue.idle_until(self._limits.idle_close_s) <= now:
            self._connections.forget(queue, "idle")
            return
        self._turns.wake(queue)

    def _is_in_doubt(self, queue: EndpointQueue, now: float) -> bool:
        is_untrusted = queue.trust_until is not None and queue.trust_until <= now
        return is_untrusted or queue.is_doubtful(self._limits.settle_after_s, now)

    def _end(self, owed: OwedNotice, outcome: Outcome, now: float) -> None:
        queue = self._connections.find(owed.endpoint, now)
        self._close(owed, queue, outcome, now)
        self._turns.wake(queue)

    def _settle(self, now: float) -> None:
        """What has been handed off long enough ago, at whichever endpoints: the many that end in the same way."""
        held, self._held = _in_turn(self._held), []
        outcome = Outcome.HELD_UP
        for owed in held:
            owed.outcome = outcome
            owed.ended_at = now
        self._ledger.remove(held)
        self._note_ended(held, outcome, now)

    def _close(self, owed: OwedNotice, queue: EndpointQueue, outcome: Outcome, now: float) -> None:
        queue.discard(owed)
        queue.used_at = now
        owed.outcome, owed.ended_at = outcome, now
        self._ledger.remove([owed])
        self._note_ended([owed], outcome, now)

    def _note_ended(self, ended: list[OwedNotice], outcome: Outcome, now: float) -> None:
        if not ended:
            return
        self._stats.notices_ended[outcome.word] += len(ended)
        if outcome.is_settled:
            self._stats.owed_to_settled.observe([now - owed.owed_since for owed in ended])
        self._ended += ended


def _in_turn(by_queue: list[list[OwedNotice]]) -> list[OwedNotice]:
    """One of each queue, then the next ones: mostly the order in which they came into memory, which is read faster in
    that order than in any other. Queues of unlike lengths, one after the other.
    """
    if len(by_queue) == 1:
        return by_queue[0]
    if len(by_queue) * max(map(len, by_queue), default=0) > 2 * sum(map(len, by_queue)):
        return list(chain.from_iterable(by_queue))
    return [owed for row in zip_longest(*by_queue) for owed in row if owed is not None]
