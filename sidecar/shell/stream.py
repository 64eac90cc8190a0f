"""One rank's stream: read by itself, bounded in what it may cost, and ended when it says what is no message."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, cast

import structlog
from msgspec import structs

from sidecar.errors import WireError
from sidecar.model import (
    Accepted,
    HandedOff,
    HandedOffBatch,
    Refusal,
    Reply,
    Settled,
    SettledBatch,
    SpaceFreed,
    Upward,
    Welcome,
)
from sidecar.shell.credentials import Credentials, credentials_of
from sidecar.shell.doorbell import RECEIVE_BYTES, Doorbell
from sidecar.shell.quiet import QuietStreams
from sidecar.wire.ingress import encode_all, upward_reader

SPARABLE = (Accepted, HandedOff, HandedOffBatch, Settled, SettledBatch)
"""Replies without which a rank only tells a successor of this sidecar more than it needs to hear."""

SPARABLE_LIMIT_BYTES = 1024 * 1024
"""What a reader may leave lying before those are no longer written to it: its process computes and seldom reads."""

WRITE_BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
"""Beyond it the stream is ended. All refusals that are kept for a rank that connects (`core/refusals.py`) are below."""

HELLO_LIMIT_S = 10.0


class Receiver(Protocol):
    def receive(self, stream: int, messages: Sequence[Upward]) -> None: ...

    def pump(self) -> None: ...

    def stream_closed(self, stream: int) -> None: ...

    def process_died(self, stream: int) -> None: ...


class Server(Protocol):
    """`junk` counts by kind what was turned away, `replies_spared` what was not written to who reads too slowly."""

    junk: Counter[str]
    replies_spared: int
    quiet: QuietStreams

    def admit(self, stream: "RankStream", who: Credentials) -> int | None:
        """The stream's number, or None when it is not served."""

    def closed(self, stream: int) -> None: ...


class RankStream(asyncio.Protocol):
    def __init__(self, server: Server, receiver: Receiver) -> None:
        self._server = server
        self._receiver = receiver
        self._reader = upward_reader()
        self._number: int | None = None
        self._is_silent = True
        self._is_over = False  # whatever else it says is not heard
        self._transport: asyncio.Transport
        self._doorbell: Doorbell | None = None
        self._patience: asyncio.TimerHandle | None = None

    # -- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._number = self._server.admit(self, credentials_of(transport.get_extra_info("socket")))
        if self._number is None:
            self._abort()
            return
        self._patience = asyncio.get_running_loop().call_later(HELLO_LIMIT_S, self._give_up_waiting)

    def data_received(self, data: bytes) -> None:
        if self._number is None or self._is_over:
            return
        self._is_silent = False
        messages, error = self._reader.cut(data)
        self._receiver.receive(self._number, messages)
        self._receiver.pump()
        if error is not None:
            self._end_for_junk(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._take_down_doorbell()
        if self._number is not None:
            self._server.closed(self._number)

    # -- for the server

    def write(self, messages: Sequence[Reply]) -> None:
        if self._transport.is_closing():
            return
        waiting = self._transport.get_write_buffer_size()
        if waiting > SPARABLE_LIMIT_BYTES:
            needed = [message for message in messages if not isinstance(message, SPARABLE)]
            self._server.replies_spared += len(messages) - len(needed)
            messages = needed
        match messages:
            case [Welcome(doorbell=True) as welcome, *rest]:
                unsent = self._welcome_with_doorbell(welcome, rest)
            case _:
                unsent = encode_all(messages)
        self._transport.write(unsent)
        if self._transport.get_write_buffer_size() > WRITE_BUFFER_LIMIT_BYTES:
            self._server.junk["slow_reader"] += 1
            self._abort()

    def end(self) -> None:
        self._is_over = True
        self._take_down_doorbell()
        self._transport.close()

    # -- inside

    def _abort(self) -> None:
        self._is_over = True
        self._take_down_doorbell()
        self._transport.abort()

    def _end_for_junk(self, error: WireError) -> None:
        self._server.junk["malformed"] += 1
        structlog.get_logger("sidecar").warning("stream closed: malformed input", reason=str(error))
        self.write([Refusal(str(error))])
        self.end()

    def _give_up_waiting(self) -> None:
        if self._is_silent:
            self._server.junk["no_hello"] += 1
            self._abort()

    def _welcome_with_doorbell(self, welcome: Welcome, rest: Sequence[Reply]) -> bytes:
        """What is left to be written. Where there is no doorbell to be had the stream is read as ever, and where there
        is no memory to be had it is read when the bell rings."""
        without = structs.replace(welcome, shares_memory=False)
        for offered in (welcome, without):
            with contextlib.suppress(OSError):
                return self._hang_doorbell(offered, rest)
        return encode_all([structs.replace(without, doorbell=False), *rest])

    def _hang_doorbell(self, welcome: Welcome, rest: Sequence[Reply]) -> bytes:
        stream = self._transport.get_extra_info("socket").fileno()
        doorbell = Doorbell(stream, shares_memory=welcome.shares_memory)
        words = encode_all([welcome, *rest])
        try:
            sent = doorbell.give(words)
        except OSError:
            doorbell.close()
            raise
        self._doorbell = doorbell
        self._transport.pause_reading()
        asyncio.get_running_loop().add_reader(doorbell.descriptor, self._rung)
        self._server.quiet.add(doorbell.stream, self._read)
        return words[sent:]

    def _rung(self) -> None:
        """Decode waits for what somebody rang for: it is read first, and once more after the bell is silent, for what
        was rung for in between."""
        self._read()
        if self._doorbell is not None:
            self._doorbell.silence()
            self._read()

    def _read(self) -> None:
        """As much as at once; others have their turn before the rest."""
        if self._doorbell is None or self._is_over:
            return
        try:
            data = self._doorbell.read()
        except WireError as error:
            self._end_for_junk(error)
            return
        if data is None:
            return
        if not data:
            self._transport.abort()
            return
        if self._doorbell.is_awaited:
            self.write([SpaceFreed()])
        self.data_received(data)
        if len(data) == RECEIVE_BYTES:
            asyncio.get_running_loop().call_soon(self._read)

    def _take_down_doorbell(self) -> None:
        """A rank that has died is heard to its end, whatever has broken its stream, before anybody hears of that."""
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is None:
            return
        self._server.quiet.remove(doorbell.stream)
        asyncio.get_running_loop().remove_reader(doorbell.descriptor)
        with contextlib.suppress(WireError):
            while not self._is_over and (data := doorbell.read()):
                self.data_received(data)
        doorbell.close()
