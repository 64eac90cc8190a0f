"""Which decode endpoints are known and which of them have a socket, within a budget of sockets."""

from collections import OrderedDict
from itertools import islice

from sidecar.core.actions import CloseEndpoint, Connect
from sidecar.core.endpoint_queue import Connection, EndpointQueue
from sidecar.core.stats import Stats
from sidecar.model import DecodeEndpoint

_ABSENT = Connection.ABSENT

CHANCE_S = 1.0
"""A new connection keeps its socket at least so long, peer or not: else a crowd that wants more sockets than there are
closes each other's before any of them is connected."""

_SEARCH = 64
"""How many of the least recently used are looked at for one to close: a full table must not make each opening slow."""


class Connections:
    """Endpoints in the order of their last use. At the limit the one that can best be spared is closed, or the new one
    must wait.
    """

    def __init__(self, *, limit: int, stats: Stats) -> None:
        self._limit = limit
        self._stats = stats
        self._queues: OrderedDict[DecodeEndpoint, EndpointQueue] = OrderedDict()
        self._opened: OrderedDict[DecodeEndpoint, EndpointQueue] = OrderedDict()
        self._actions: list[Connect | CloseEndpoint] = []

    def __len__(self) -> int:
        return len(self._queues)

    def queues(self) -> list[EndpointQueue]:
        return list(self._queues.values())

    def known(self, endpoint: DecodeEndpoint) -> EndpointQueue | None:
        return self._queues.get(endpoint)

    def find(self, endpoint: DecodeEndpoint, now: float) -> EndpointQueue:
        """Counts as a use."""
        queue = self._queues.get(endpoint)
        if queue is None:
            queue = self._queues[endpoint] = EndpointQueue(endpoint, now)
        queue.used_at = now
        if queue.connection is not _ABSENT and not queue.is_due:  # one that is due has just been used
            self._opened.move_to_end(endpoint)
        return queue

    def open(self, queue: EndpointQueue, now: float) -> None:
        if len(self._opened) >= self._limit and not self._spare_one(now):
            self._stats.connections_over_limit += 1
            return
        self._stats.connections_opened += 1
        self._opened[queue.endpoint] = queue
        queue.connection = Connection.DOWN
        queue.opened_at = now
        self._actions.append(Connect(queue.endpoint))

    def forget(self, queue: EndpointQueue, reason: str) -> None:
        """Nothing is owed there."""
        self._close(queue, reason)
        del self._queues[queue.endpoint]

    def take_actions(self) -> list[Connect | CloseEndpoint]:
        actions, self._actions = self._actions, []
        return actions

    def _close(self, queue: EndpointQueue, reason: str) -> None:
        if self._opened.pop(queue.endpoint, None) is None:
            return
        self._stats.connections_closed[reason] += 1
        queue.connection = Connection.ABSENT
        self._actions.append(CloseEndpoint(queue.endpoint))

    def _spare_one(self, now: float) -> bool:
        """One that is owed nothing goes first; else one that has found no peer, whose notices wait for their next turn.
        Not if one was handed off there: libzmq found the peer, and has not said so yet."""
        oldest = [queue for queue in islice(self._opened.values(), _SEARCH) if _has_had_its_chance(queue, now)]
        for queue in oldest:
            if queue.is_spare:
                self.forget(queue, "limit")
                return True
        for queue in oldest:
            if queue.connection is Connection.DOWN and not queue.handed_off:
                self._close(queue, "limit")
                return True
        return False


def _has_had_its_chance(queue: EndpointQueue, now: float) -> bool:
    return queue.connection is Connection.UP or queue.opened_at + CHANCE_S <= now
