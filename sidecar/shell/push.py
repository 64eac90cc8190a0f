"""One link for each decode endpoint. It offers, watches and reports; what to send and when is the core's business."""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog
import zmq

from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint
from sidecar.shell.link import FAILURES, Link
from sidecar.shell.monitors import Monitors
from sidecar.wire.kv_status import failed_frames

LOOKUP_LIMIT_S = 5.0


class Listener(Protocol):
    def endpoint_up(self, endpoint: DecodeEndpoint) -> None: ...

    def endpoint_down(self, endpoint: DecodeEndpoint) -> None: ...


class PushPool:
    """`failures` counts by kind what went wrong with connections and sockets."""

    def __init__(self, listener: Listener, *, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.failures: Counter[str] = Counter()
        self._listener = listener
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._monitors = Monitors(self._loop)
        self._links: dict[DecodeEndpoint, Link] = {}
        self._lookups: dict[DecodeEndpoint, asyncio.Task[None]] = {}
        self._wanted: set[DecodeEndpoint] = set()

    def __len__(self) -> int:
        return len(self._links)

    def connect(self, endpoint: DecodeEndpoint) -> None:
        self._wanted.add(endpoint)
        if endpoint in self._links or endpoint in self._lookups:
            return
        host = endpoint.host.removeprefix("[").removesuffix("]")
        if _is_literal(host):
            self._open(endpoint, host)
        else:
            self._lookups[endpoint] = self._loop.create_task(self._look_up(endpoint, host))

    def offer(self, endpoint: DecodeEndpoint, offers: Sequence[OwedNotice]) -> int:
        return self._hand_off(endpoint, [failed_frames(owed.life.room, owed.notice, owed.form) for owed in offers])

    def carry(self, endpoint: DecodeEndpoint, messages: Sequence[Sequence[bytes]]) -> int:
        return self._hand_off(endpoint, [list(frames) for frames in messages])

    def _hand_off(self, endpoint: DecodeEndpoint, messages: list[list[bytes]]) -> int:
        link = self._links.get(endpoint)
        if link is None:
            if endpoint in self._wanted:  # there was no socket to be had before
                self.connect(endpoint)
            return 0
        handed_off, error = link.send_all(messages)
        if error is not None:
            self._fault("send", endpoint, error)
        return handed_off

    def close(self, endpoint: DecodeEndpoint, *, linger_ms: int = 0) -> None:
        self._wanted.discard(endpoint)
        if (lookup := self._lookups.pop(endpoint, None)) is not None:
            lookup.cancel()
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.close(linger_ms)

    def close_all(self, *, linger_ms: int) -> None:
        """What libzmq has taken may still leave, for that long after the context is asked to end."""
        for endpoint in list(self._wanted):
            self.close(endpoint, linger_ms=linger_ms)
        self._monitors.close()

    def _open(self, endpoint: DecodeEndpoint, host: str) -> None:
        try:
            self._links[endpoint] = Link(
                endpoint, host, context=self._context, monitors=self._monitors, on_event=self.heard
            )
        except zmq.ZMQError as error:
            self._fault("open", endpoint, error)

    async def _look_up(self, endpoint: DecodeEndpoint, host: str) -> None:
        """libzmq would look names up in its only I/O thread, where a slow answer holds up every other endpoint."""
        try:
            async with asyncio.timeout(LOOKUP_LIMIT_S):
                found = await self._loop.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._fault("lookup", endpoint, error)
        else:
            self._open(endpoint, str(found[0][4][0]))
        del self._lookups[endpoint]  # a cancelled one was taken out by whoever cancelled it

    def _fault(self, kind: str, endpoint: DecodeEndpoint, error: Exception) -> None:
        self.failures[kind] += 1
        address = f"{endpoint.host}:{endpoint.port}"
        structlog.get_logger("sidecar").debug("push fault", kind=kind, endpoint=address, reason=str(error))

    # -- for the links

    def heard(self, endpoint: DecodeEndpoint, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._listener.endpoint_up(endpoint)
        elif event == zmq.EVENT_DISCONNECTED:
            self._listener.endpoint_down(endpoint)
        else:
            self.failures[FAILURES.get(event, "other")] += 1


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
