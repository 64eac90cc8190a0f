"""The pump: whatever happens is fed to the core, what the core wants done is done, and one timer is armed."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

import structlog

from sidecar.core.actions import (
    Attempt,
    CloseEndpoint,
    CloseStream,
    Connect,
    RankJoined,
    RankLeft,
    Retire,
    SendNotices,
    SendParcels,
    SendReplies,
    Single,
)
from sidecar.core.notifier import Notifier
from sidecar.core.owed import OwedNotice
from sidecar.core.room import Room
from sidecar.model import DecodeEndpoint, Reply, Upward
from sidecar.shell.log import is_debugging
from sidecar.shell.pulse import STALL_S

MIN_SLEEP_S = 0.001
"""uvloop's timers have a grain of 1 ms; a shorter one would spin."""


class Push(Protocol):
    def connect(self, endpoint: DecodeEndpoint) -> None: ...

    def offer(self, endpoint: DecodeEndpoint, offers: Sequence[OwedNotice]) -> int:
        """How many were handed off, from the first on. The next one was refused, the rest not tried. Never waits, never
        raises for what the endpoint is or does.
        """

    def carry(self, endpoint: DecodeEndpoint, messages: Sequence[Sequence[bytes]]) -> int:
        """The same with messages whose frames are given."""

    def close(self, endpoint: DecodeEndpoint) -> None: ...


class Streams(Protocol):
    def write(self, stream: int, messages: Sequence[Reply]) -> None: ...

    def end(self, stream: int) -> None: ...


class Observer(Protocol):
    """Is shown what happens to lives; decides nothing, and returns at once."""

    def taken(self, stream: int, messages: Sequence[Upward]) -> None:
        """After the core took them."""

    def report(self, finished: Sequence[Room]) -> None: ...


class Driver:
    """Everything runs on the loop's thread. `push` and `streams` are attached before the first input."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        on_retire: Callable[[], None],
        on_finished: Callable[[list[Room]], None] = lambda _: None,
    ) -> None:
        self.notifier = notifier
        self._loop = loop
        self._clock = clock
        self._on_retire = on_retire
        self._on_finished = on_finished
        self.observer: Observer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._log = structlog.get_logger("sidecar")
        self._push: Push
        self._streams: Streams

    def log_changed(self) -> None:
        """A bound logger keeps the level it was bound with; binding for each line would cost more than the line."""
        self._log = structlog.get_logger("sidecar").bind()

    def attach(self, *, push: Push, streams: Streams) -> None:
        self._push = push
        self._streams = streams

    # -- inputs

    def receive(self, stream: int, messages: Sequence[Upward]) -> None:
        """The caller pumps when it has nothing more to hand over."""
        if is_debugging():
            for message in messages:
                self._log.debug("received", stream=stream, message=message)
        self.notifier.receive(stream, messages, self._clock())
        if self.observer is not None:
            self.observer.taken(stream, messages)

    def stream_closed(self, stream: int) -> None:
        self.notifier.stream_closed(stream, self._clock())
        self.pump()

    def process_died(self, stream: int) -> None:
        self.notifier.process_died(stream, self._clock())
        self.pump()

    def endpoint_up(self, endpoint: DecodeEndpoint) -> None:
        self.notifier.endpoint_up(endpoint, self._clock())
        self.pump()

    def endpoint_down(self, endpoint: DecodeEndpoint) -> None:
        self.notifier.endpoint_down(endpoint, self._clock())
        self.pump()

    def stalled(self) -> None:
        self.notifier.stalled(self._clock())

    def begin_shutdown(self) -> None:
        self.notifier.begin_shutdown(self._clock())
        self.pump()

    # -- the pump

    def pump(self) -> None:
        while actions := self.notifier.take_actions():
            attempts: list[Attempt] = []
            for action in actions:
                if isinstance(action, SendNotices):
                    attempts.append((action, self._push.offer(action.endpoint, action.offers)))
                else:
                    self._perform(action)
            if attempts:
                self._report_attempts(attempts)
        if finished := self.notifier.take_finished():
            self._on_finished(finished)
            if self.observer is not None:
                self.observer.report(finished)
        self._arm()
        if self._waiting is not None and self.notifier.is_idle and not self._waiting.done():
            self._waiting.set_result(None)

    async def idle(self) -> None:
        """Returns once nothing waits to be handed off."""
        self._waiting = self._loop.create_future()
        self.pump()
        await self._waiting

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._armed_for = None

    def _perform(self, action: Single) -> None:
        match action:
            case SendParcels():
                handed_off = self._push.carry(action.endpoint, [parcel.frames for parcel in action.parcels])
                self.notifier.parcels_attempted(action, handed_off, self._clock())
            case SendReplies():
                self._streams.write(action.stream, action.messages)
            case Connect(endpoint):
                self._push.connect(endpoint)
            case CloseEndpoint(endpoint):
                self._push.close(endpoint)
            case CloseStream(stream):
                self._streams.end(stream)
            case RankJoined() | RankLeft():
                self._report(action)
            case Retire():
                self._on_retire()
            case _:
                assert_never(action)

    def _report_attempts(self, attempts: Sequence[Attempt]) -> None:
        if is_debugging():
            for action, handed_off in attempts:
                for number, owed in enumerate(action.offers[: handed_off + 1]):
                    self._log.debug("handed off" if number < handed_off else "refused", key=owed.key)
        self.notifier.attempted(attempts, self._clock())

    def _report(self, action: RankJoined | RankLeft) -> None:
        match action:
            case RankJoined(hello, is_back):
                self._log.info(
                    "rank joined",
                    process=hello.process,
                    engine=hello.engine,
                    role=hello.role,
                    prefill_rank=hello.prefill_rank,
                    pid=hello.pid,
                    sglang=hello.sglang,
                    backend=hello.backend,
                    is_back=is_back,
                )
            case RankLeft(process, pid, in_order, open_rooms):
                is_loss = open_rooms > 0 and not in_order
                report = self._log.warning if is_loss else self._log.info
                text = "rank lost: its stream ended with rooms open" if is_loss else "rank left"
                report(text, process=process, pid=pid, said_goodbye=in_order, open_rooms=open_rooms)

    # -- the timer

    def _arm(self) -> None:
        """A timer that is armed for an earlier time stays: whoever is woken too early asks again, which costs less than
        a new timer each time that something is done."""
        deadline = self.notifier.next_deadline()
        if deadline is None or (self._armed_for is not None and self._armed_for <= deadline):
            return
        self.stop()
        wait_s = max(deadline - self._clock(), MIN_SLEEP_S)
        self._timer = self._loop.call_later(math.ceil(wait_s * 1000) / 1000, self._on_timer)
        self._armed_for = deadline

    def _on_timer(self) -> None:
        now, due = self._clock(), self._armed_for
        self._timer = self._armed_for = None
        if due is not None and now - due > STALL_S:
            self.notifier.stalled(now)
        self.notifier.handle_timer(now)
        self.pump()
