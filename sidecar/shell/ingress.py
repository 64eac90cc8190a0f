"""The unix-stream side: rank processes connect, each stream is read by itself, and a bad one costs only itself."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, cast

import structlog

from sidecar.errors import SidecarError
from sidecar.model import Accepted, HandedOff, HandedOffBatch, Refusal, Reply, Settled, SettledBatch, Upward
from sidecar.shell.credentials import Credentials, credentials_of
from sidecar.shell.deaths import DeathWatch
from sidecar.shell.rendezvous import Rendezvous
from sidecar.wire.ingress import encode_all, upward_reader

STREAM_LIMIT = 1024
SPARABLE = (Accepted, HandedOff, HandedOffBatch, Settled, SettledBatch)
"""Replies without which a rank only tells a successor of this sidecar more than it needs to hear."""

SPARABLE_LIMIT_BYTES = 1024 * 1024
"""What a reader may leave lying before those are no longer written to it: its process computes and seldom reads."""

WRITE_BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
"""Beyond it the stream is ended. All refusals that are kept for a rank that connects (`core/refusals.py`) are below."""

HELLO_LIMIT_S = 10.0

LOOK_S = 2.0
"""How often it is looked whether ranks can still find the socket."""


class Receiver(Protocol):
    def receive(self, stream: int, messages: Sequence[Upward]) -> None: ...

    def pump(self) -> None: ...

    def stream_closed(self, stream: int) -> None: ...

    def process_died(self, stream: int) -> None: ...


class IngressServer:
    """`junk` counts by kind what was turned away; nothing else of a bad client is kept. `replies_spared` were not
    written to ranks that read too slowly."""

    def __init__(self, receiver: Receiver, *, uid: int, group: int | None, stream_limit: int = STREAM_LIMIT) -> None:
        self.junk: Counter[str] = Counter()
        self.accepted = 0
        self.replies_spared = 0
        self._receiver = receiver
        self._uid = uid
        self._group = group
        self._stream_limit = stream_limit
        self._streams: dict[int, _Stream] = {}
        self._server: asyncio.AbstractServer | None = None
        self._deaths = DeathWatch(receiver.process_died)
        self._renewal: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_serving(self) -> bool:
        return self._server is not None

    async def start(self, rendezvous: Rendezvous) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Stream(self, self._receiver), sock=rendezvous.listener, backlog=1024
        )

    def look_after(self, rendezvous: Rendezvous) -> None:
        """Serves the place anew if the socket has been removed from it. Streams that are open go on."""
        if self._server is None or rendezvous.is_in_place():
            return
        log = structlog.get_logger("sidecar")
        try:
            rendezvous.renew()
        except SidecarError as error:
            log.warning("socket removed, and not served anew: ranks that come now find nobody here", reason=str(error))
            return
        log.warning("socket removed: served anew", socket=str(rendezvous.path))
        self._server.close()
        self._renewal = asyncio.get_running_loop().create_task(self.start(rendezvous))

    def stop(self) -> None:
        """No more streams, and those that are open end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._renewal is not None:
            self._renewal.cancel()
        self._deaths.stop()
        for stream in list(self._streams.values()):
            stream.end()

    async def hear_out_the_dead(self) -> None:
        """Before the stop: a supervisor ends us right after the engine."""
        await self._deaths.hear_out()

    # -- the core's orders

    def write(self, stream: int, messages: Sequence[Reply]) -> None:
        if (known := self._streams.get(stream)) is not None:
            known.write(messages)

    def end(self, stream: int) -> None:
        if (known := self._streams.get(stream)) is not None:
            known.end()

    # -- for the streams

    def admit(self, stream: "_Stream", who: Credentials) -> int | None:
        """The stream's number, or None when it is not served."""
        if who.uid not in (self._uid, 0) and self._group not in who.groups:
            self.junk["foreign_user"] += 1
            structlog.get_logger("sidecar").warning(
                "stream of another user refused", pid=who.pid, uid=who.uid, groups=sorted(who.groups)
            )
            return None
        if len(self._streams) >= self._stream_limit:
            self.junk["too_many_streams"] += 1
            return None
        self.accepted += 1
        self._streams[self.accepted] = stream
        self._deaths.know(self.accepted, who.pid)
        return self.accepted

    def closed(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._receiver.stream_closed(stream)
            self._deaths.watch(stream)


class _Stream(asyncio.Protocol):
    def __init__(self, server: IngressServer, receiver: Receiver) -> None:
        self._server = server
        self._receiver = receiver
        self._reader = upward_reader()
        self._number: int | None = None
        self._is_silent = True
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._number = self._server.admit(self, credentials_of(transport.get_extra_info("socket")))
        if self._number is None:
            self._transport.abort()
            return
        self._patience = asyncio.get_running_loop().call_later(HELLO_LIMIT_S, self._give_up_waiting)

    def data_received(self, data: bytes) -> None:
        if self._number is None or self._transport.is_closing():
            return
        self._is_silent = False
        messages, error = self._reader.cut(data)
        self._receiver.receive(self._number, messages)
        self._receiver.pump()
        if error is not None:
            self._server.junk["malformed"] += 1
            structlog.get_logger("sidecar").warning("stream closed: malformed input", reason=str(error))
            self.write([Refusal(str(error))])
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._number is not None:
            self._server.closed(self._number)

    def write(self, messages: Sequence[Reply]) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > SPARABLE_LIMIT_BYTES:
            needed = [message for message in messages if not isinstance(message, SPARABLE)]
            self._server.replies_spared += len(messages) - len(needed)
            messages = needed
        self._transport.write(encode_all(messages))
        if self._transport.get_write_buffer_size() > WRITE_BUFFER_LIMIT_BYTES:
            self._server.junk["slow_reader"] += 1
            self._transport.abort()

    def end(self) -> None:
        self._transport.close()

    def _give_up_waiting(self) -> None:
        if self._is_silent:
            self._server.junk["no_hello"] += 1
            self._transport.abort()
