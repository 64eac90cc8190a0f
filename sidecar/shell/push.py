"""One PUSH socket for each decode endpoint. It offers, watches and reports; what to send and when is the core's
business.

Socket options by measurement: IMMEDIATE makes a missing peer visible as a refusal instead of swallowing messages, a
reconnect interval of -1 would go deaf for good after one refused connect, and heartbeats end a frozen peer's
connection.
"""

import asyncio
import ipaddress
import itertools
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog
import zmq

from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint
from sidecar.wire.kv_status import failed_frames

OPTIONS: dict[int, int] = {
    zmq.IMMEDIATE: 1,
    zmq.SNDHWM: 1000,
    zmq.LINGER: 0,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.CONNECT_TIMEOUT: 3000,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.HEARTBEAT_IVL: 2000,  # rarer costs less with a thousand endpoints that are idle
    zmq.HEARTBEAT_TIMEOUT: 1900,
}

FROZEN_PEER_LIMIT_S = 3.9
"""Heartbeat interval and timeout together: how long a dead connection can pass for one that is up."""

LOOKUP_LIMIT_S = 5.0

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As plain numbers: `send_multipart` works with the flags as enums, which costs more than the sending."""

_FAILURES: dict[int, str] = {
    zmq.EVENT_CLOSED: "closed",
    zmq.EVENT_CONNECT_RETRIED: "retried",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake_failed",
}
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | sum(_FAILURES)
_serial = itertools.count()
_EVENT = struct.Struct("=HI")


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
        self._links: dict[DecodeEndpoint, _Link] = {}
        self._lookups: dict[DecodeEndpoint, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._links)

    def connect(self, endpoint: DecodeEndpoint) -> None:
        if endpoint in self._links or endpoint in self._lookups:
            return
        host = endpoint.host.removeprefix("[").removesuffix("]")
        if _is_literal(host):
            self._open(endpoint, host)
        else:
            self._lookups[endpoint] = self._loop.create_task(self._look_up(endpoint, host))

    def offer(self, endpoint: DecodeEndpoint, offers: Sequence[OwedNotice]) -> int:
        return self._hand_off(endpoint, [failed_frames(owed.notice, owed.form) for owed in offers])

    def carry(self, endpoint: DecodeEndpoint, messages: Sequence[Sequence[bytes]]) -> int:
        return self._hand_off(endpoint, messages)

    def _hand_off(self, endpoint: DecodeEndpoint, messages: Sequence[Sequence[bytes]]) -> int:
        link = self._links.get(endpoint)
        if link is None:
            self.connect(endpoint)
            return 0
        handed_off, send = 0, link.send
        try:
            for frames in messages:
                send(frames)
                handed_off += 1
        except zmq.Again:
            return handed_off
        except zmq.ZMQError as error:
            self._fault("send", endpoint, error)
        return handed_off

    def close(self, endpoint: DecodeEndpoint, *, linger_ms: int = 0) -> None:
        if (lookup := self._lookups.pop(endpoint, None)) is not None:
            lookup.cancel()
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.close(linger_ms)

    def close_all(self, *, linger_ms: int) -> None:
        """What libzmq has taken may still leave, for that long after the context is asked to end."""
        for endpoint in [*self._links, *self._lookups]:
            self.close(endpoint, linger_ms=linger_ms)

    def _open(self, endpoint: DecodeEndpoint, host: str) -> None:
        try:
            self._links[endpoint] = _Link(self, endpoint, host, self._context, self._loop)
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
            self.failures[_FAILURES.get(event, "other")] += 1


class _Link:
    """A PUSH socket and its monitor. The monitor's descriptor fires once for a batch of events: it is read dry.

    libzmq's I/O thread waits, with the PUSH socket's monitor locked, while an event finds no taker: so our end of the
    pair has no bound and goes only after the monitor has been stopped. Otherwise that thread and this one are stuck for
    good.
    """

    __slots__ = ("_endpoint", "_is_closed", "_loop", "_monitor", "_monitor_fd", "_pool", "_receive", "_send", "push")

    def __init__(
        self,
        pool: PushPool,
        endpoint: DecodeEndpoint,
        host: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._loop = loop
        self._is_closed = False
        self.push = context.socket(zmq.PUSH)
        # Of the class below zmq.Socket: without the arguments that only other kinds of socket have, at half the cost.
        self._send = super(zmq.Socket, self.push).send
        try:
            for option, value in OPTIONS.items():
                self.push.setsockopt(option, value)
            self.push.setsockopt(zmq.IPV6, ":" in host)
            address = f"inproc://monitor-{next(_serial)}"
            self.push.monitor(address, _WATCHED)
            self._monitor = context.socket(zmq.PAIR)
            self._receive = super(zmq.Socket, self._monitor).recv
            self._monitor.setsockopt(zmq.RCVHWM, 0)
            self._monitor.connect(address)
            self._monitor_fd = int(self._monitor.getsockopt(zmq.FD))
            self.push.connect(f"tcp://[{host}]:{endpoint.port}" if ":" in host else f"tcp://{host}:{endpoint.port}")
        except zmq.ZMQError:
            self.push.close(linger=0)
            raise
        loop.add_reader(self._monitor_fd, self._read_monitor)
        loop.call_soon(self._read_monitor)

    def send(self, frames: Sequence[bytes]) -> None:
        """Raises zmq.Again for a message that is not taken."""
        send = self._send
        first, *others, last = frames
        send(first, _MORE)
        try:
            for frame in others:
                send(frame, _MORE)
        except zmq.Again:  # its pipe has gone: libzmq swallows what follows, up to a last frame of the same message
            send(last, _LAST)
            raise
        send(last, _LAST)

    def close(self, linger_ms: int) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._monitor_fd)
        self.push.monitor(None, 0)
        self._monitor.close(linger=0)
        self.push.close(linger=linger_ms)

    def _read_monitor(self) -> None:
        while not self._is_closed:
            try:
                described = self._receive(_LAST)
                self._receive(_LAST)  # the address
            except zmq.Again:
                return
            event, _ = _EVENT.unpack(described)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                # Makes the socket see its new pipe now: a send within 1 ms of another does not look by itself.
                self.push.getsockopt(zmq.EVENTS)
            self._pool.heard(self._endpoint, event)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
