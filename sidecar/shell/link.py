"""A PUSH socket to one decode endpoint, and its monitor.

Socket options by measurement: IMMEDIATE makes a missing peer visible as a refusal instead of swallowing messages, a
reconnect interval of -1 would go deaf for good after one refused connect, and heartbeats end a frozen peer's
connection.
"""

import contextlib
import itertools
import random
import struct
from collections.abc import Callable, Iterable

import zmq
from zmq.backend import Socket

from sidecar.model import DecodeEndpoint
from sidecar.shell.monitors import Monitors

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

UNEVEN = (zmq.CONNECT_TIMEOUT, zmq.HANDSHAKE_IVL)
"""Up to a quarter shorter at each endpoint: a server's endpoints die together, and would be given up and tried again
together too, in bursts that those of other servers wait for. Heartbeats stay in step, which costs least."""

FROZEN_PEER_LIMIT_S = 3.9
"""Heartbeat interval and timeout together: how long a dead connection can pass for one that is up."""

DONTWAIT = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As plain numbers: `send_multipart` works with the flags as enums, which costs more than the sending."""

FAILURES: dict[int, str] = {
    zmq.EVENT_CLOSED: "closed",
    zmq.EVENT_CONNECT_RETRIED: "retried",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake_failed",
}
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | sum(FAILURES)
_serial = itertools.count()
_EVENT = struct.Struct("=HI")


class Link:
    """`on_event` gets the monitor's events. `host` is an address; `endpoint` may have a name for it. Raises
    zmq.ZMQError when there is no socket to be had.

    The sockets are those that `zmq.Socket` adds its comforts to: with them an endpoint costs a KB more, and sending
    twice as much time.

    libzmq's I/O thread waits, with the PUSH socket's monitor locked, while an event finds no taker: so our end of the
    pair has no bound and goes only after the monitor has been stopped. Otherwise that thread and this one are stuck for
    good.
    """

    __slots__ = ("_endpoint", "_is_closed", "_monitor", "_monitor_fd", "_monitors", "_on_event", "_push")

    def __init__(
        self,
        endpoint: DecodeEndpoint,
        host: str,
        *,
        context: "zmq.Context[zmq.Socket[bytes]]",
        monitors: Monitors,
        on_event: Callable[[DecodeEndpoint, int], None],
    ) -> None:
        self._endpoint = endpoint
        self._monitors = monitors
        self._on_event = on_event
        self._is_closed = False
        self._push = Socket(context, zmq.PUSH)
        try:
            for option, value in OPTIONS.items():
                self._push.set(option, value)
            for option in UNEVEN:
                self._push.set(option, int(OPTIONS[option] * random.uniform(0.75, 1.0)))  # noqa: S311 - not a secret
            self._push.set(zmq.IPV6, int(":" in host))
            address = f"inproc://monitor-{next(_serial)}"
            self._push.monitor(address, _WATCHED)
            self._monitor = Socket(context, zmq.PAIR)
            self._monitor.set(zmq.RCVHWM, 0)
            self._monitor.connect(address)
            self._monitor_fd = int(self._monitor.get(zmq.FD))
            self._push.connect(f"tcp://[{host}]:{endpoint.port}" if ":" in host else f"tcp://{host}:{endpoint.port}")
        except zmq.ZMQError:
            self._push.close(linger=0)
            raise
        monitors.watch(self._monitor_fd, self)

    def send_all(self, messages: Iterable[list[bytes]]) -> tuple[int, zmq.ZMQError | None]:
        """How many were taken, from the first on, and what is wrong if the next one was not just refused. The lists
        are used up."""
        taken, begun, send = 0, False, self._push.send
        try:
            for frames in messages:
                last = frames.pop()
                for frame in frames:
                    send(frame, _MORE)
                    begun = True
                begun = False
                send(last, DONTWAIT)
                taken += 1
        except zmq.Again:
            if begun:  # its pipe has gone: libzmq swallows what follows, up to a last frame of the same message
                with contextlib.suppress(zmq.ZMQError):
                    send(last, DONTWAIT)
        except zmq.ZMQError as error:
            return taken, error
        return taken, None

    def close(self, linger_ms: int) -> None:
        self._is_closed = True
        self._monitors.forget(self._monitor_fd)
        self._push.monitor(None, 0)
        self._monitor.close(linger=0)
        self._push.close(linger=linger_ms)

    def read(self) -> None:
        """The monitor, dry: its descriptor fires once for a batch of events."""
        while not self._is_closed:
            try:
                described = self._monitor.recv(DONTWAIT)
                self._monitor.recv(DONTWAIT)  # the address
            except zmq.Again:
                return
            event, _ = _EVENT.unpack(described)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                # Makes the socket see its new pipe now: a send within 1 ms of another does not look by itself.
                self._push.get(zmq.EVENTS)
            self._on_event(self._endpoint, event)
