"""Whose turn it is: which endpoints are offered what they are owed, which are tried again later, and when each is next
looked at. Work follows what is due, not what is owed.
"""

from sidecar.core.actions import SendNotices
from sidecar.core.backoff import RetrySchedule
from sidecar.core.connections import Connections
from sidecar.core.deadlines import Deadlines
from sidecar.core.endpoint_queue import Connection, EndpointQueue
from sidecar.core.limits import OutboxLimits

TURN = 256
"""Notices offered before outcomes are looked at, and shared among the endpoints that are due."""

LEAST_SHARE = 64
"""Of each endpoint, however many are due."""


class Turns:
    def __init__(self, connections: Connections, *, schedule: RetrySchedule, limits: OutboxLimits) -> None:
        self.limits = limits
        self._connections = connections
        self._schedule = schedule
        self._due: list[EndpointQueue] = []
        self._wakes: Deadlines[EndpointQueue] = Deadlines()

    def serve(self, queue: EndpointQueue, now: float) -> None:
        """Something new is owed there."""
        if queue.retry_at is None:
            if queue.connection is Connection.UP:
                if queue.pending:
                    self.make_due(queue)
                    return  # the outcome comes before any deadline could
            elif queue.connection is Connection.ABSENT:
                self.open(queue, now)
            else:
                self.retry_later(queue, now)
        self.wake(queue)

    def open(self, queue: EndpointQueue, now: float) -> None:
        self._connections.open(queue, now)
        self.retry_later(queue, now)

    def make_due(self, queue: EndpointQueue) -> None:
        if not queue.is_due:
            queue.is_due = True
            self._due.append(queue)

    def retry_later(self, queue: EndpointQueue, now: float) -> None:
        queue.refusals += 1
        queue.retry_at = now + self._schedule.delay(queue.refusals)
        queue.is_due = False
        self.wake(queue)

    def retry_if_due(self, queue: EndpointQueue, now: float) -> None:
        if queue.retry_at is None or queue.retry_at > now:
            return
        queue.retry_at = None
        if queue.pending and queue.connection is Connection.ABSENT:
            self.open(queue, now)
        elif queue.pending:
            self.make_due(queue)

    def wake(self, queue: EndpointQueue) -> None:
        """A queue that is looked at earlier already stays so: whoever is woken too early asks again."""
        limits = self.limits
        at = queue.next_deadline(
            settle_after_s=limits.settle_after_s,
            settle_grain_s=limits.settle_grain_s,
            idle_close_s=limits.idle_close_s,
        )
        if at is not None and (queue.wake_at is None or at < queue.wake_at):
            queue.wake_at = at
            self._wakes.set(queue, at)

    def pop_woken(self, now: float) -> list[EndpointQueue]:
        woken = self._wakes.pop_due(now)
        for queue in woken:
            queue.wake_at = None
        return woken

    def next_deadline(self) -> float | None:
        return self._wakes.next()

    def take_offers(self) -> list[SendNotices]:
        due, self._due = self._due, []
        offers: list[SendNotices] = []
        share = max(TURN // len(due), LEAST_SHARE) if due else 0
        for queue in due:
            if queue.is_due:
                queue.is_due = False
                if batch := queue.take_offers(share):
                    offers.append(SendNotices(queue.endpoint, batch))
        return offers
