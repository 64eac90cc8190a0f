"""Driver: actions done, outcomes fed back, one timer."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.core.outbox import OutboxLimits
from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint, Form, Notice, Reply, RoomOpened, Upward
from sidecar.shell.driver import Driver
from tests.core import scene
from tests.shell.scene import LIMIT_S


class RecordingPush:
    def __init__(self) -> None:
        self.connected: list[DecodeEndpoint] = []
        self.closed: list[DecodeEndpoint] = []
        self.offered: list[tuple[int, Notice, Form]] = []
        self.takes = False
        self.tried = asyncio.Event()

    def connect(self, endpoint: DecodeEndpoint) -> None:
        self.connected.append(endpoint)

    def offer(self, endpoint: DecodeEndpoint, offers: Sequence[OwedNotice]) -> int:
        self.offered += [(owed.life.room, owed.notice, owed.form) for owed in offers]
        self.tried.set()
        return len(offers) if self.takes else 0

    def carry(self, endpoint: DecodeEndpoint, messages: Sequence[Sequence[bytes]]) -> int:
        return len(messages) if self.takes else 0

    def close(self, endpoint: DecodeEndpoint) -> None:
        self.closed.append(endpoint)


class RecordingStreams:
    def __init__(self) -> None:
        self.written: list[Reply] = []
        self.ended: list[int] = []

    def write(self, stream: int, messages: Sequence[Reply]) -> None:
        self.written += messages

    def end(self, stream: int) -> None:
        self.ended.append(stream)


class Bench:
    """A driver whose clock stands still unless told."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.now = 1000.0
        self.push, self.streams = RecordingPush(), RecordingStreams()
        self.retired = asyncio.Event()
        notifier = Notifier(epoch="e", limits=limits or Limits(), jitter=lambda: 0.5, now=self.now)
        self.driver = Driver(
            notifier, loop=asyncio.get_running_loop(), clock=lambda: self.now, on_retire=self.retired.set
        )
        self.driver.attach(push=self.push, streams=self.streams)

    def say(self, *messages: Upward) -> None:
        self.driver.receive(1, messages)
        self.driver.pump()


def owed() -> list[Upward]:
    said = scene.Scene()
    said.join()
    return [scene.hello(), said.handshake(1, 1, scene.E1), said.failed(1, 1)]


async def test_a_refusal_is_tried_again_when_its_time_has_come() -> None:
    bench = Bench()
    bench.say(*owed())
    bench.now += 0.05
    async with asyncio.timeout(LIMIT_S):
        await bench.push.tried.wait()

    assert bench.push.connected == [scene.E1]
    await asyncio.sleep(0)
    assert bench.driver.notifier.stats.refusals == 1
    bench.driver.stop()


async def test_coming_up_sends_within_the_same_turn() -> None:
    bench = Bench()
    bench.say(*owed())
    bench.push.takes = True
    bench.driver.endpoint_up(scene.E1)

    assert bench.push.offered == [(1, Notice(0, "gone", "mooncake"), Form.BARE)]
    bench.driver.endpoint_down(scene.E1)

    assert bench.driver.notifier.outbox.pending == 1
    bench.driver.stop()


async def test_idle_waits_for_the_last_hand_off() -> None:
    bench = Bench()
    bench.say(*owed())
    bench.driver.begin_shutdown()
    waiting = asyncio.ensure_future(bench.driver.idle())
    await asyncio.sleep(0)

    assert not waiting.done()
    bench.push.takes = True
    bench.driver.endpoint_up(scene.E1)
    async with asyncio.timeout(LIMIT_S):
        await waiting
    bench.driver.stop()


async def test_idle_at_once_when_nothing_waits() -> None:
    bench = Bench()
    async with asyncio.timeout(LIMIT_S):
        await bench.driver.idle()


async def test_retiring_is_passed_on() -> None:
    bench = Bench(Limits(idle_exit_s=0.01))
    bench.driver.pump()
    bench.now += 1
    async with asyncio.timeout(LIMIT_S):
        await bench.retired.wait()


async def test_streams_are_written_and_ended_on_order() -> None:
    bench = Bench()
    bench.say(scene.hello(), scene.hello("q"))

    assert bench.streams.ended == [1]
    assert len(bench.streams.written) == 2
    bench.driver.stop()


@pytest.mark.parametrize(("in_order", "opens"), [(True, True), (False, False), (False, True)])
async def test_only_a_rank_that_leaves_rooms_open_is_an_alarm(in_order: bool, opens: bool) -> None:
    with structlog.testing.capture_logs() as lines:
        bench = Bench()
        bench.say(scene.hello())
        if opens:
            bench.say(RoomOpened(1, 1, 1))
        if in_order:
            bench.driver.begin_shutdown()
        bench.driver.stream_closed(1)
        bench.driver.stop()
    is_alarm = opens and not in_order

    assert [line["log_level"] for line in lines if "left" in line["event"] or "lost" in line["event"]] == [
        "warning" if is_alarm else "info"
    ]
    assert bench.driver.notifier.stats.ranks_lost == is_alarm


async def test_an_idle_endpoint_is_closed_on_order() -> None:
    bench = Bench()
    bench.say(*owed()[:2])
    bench.now += 601
    bench.driver.notifier.handle_timer(bench.now)
    bench.driver.pump()

    assert bench.push.closed == [scene.E1]
    bench.driver.stop()


async def test_a_timer_that_comes_too_late_settles_nothing() -> None:
    """The process stood still: what became of the connection has not been heard yet."""
    bench = Bench(Limits(outbox=OutboxLimits(settle_after_s=0.05)))
    bench.push.takes = True
    bench.say(*owed())
    bench.driver.endpoint_up(scene.E1)
    bench.now += 60.0
    stats = bench.driver.notifier.stats
    stalled = asyncio.Event()
    restart = bench.driver.notifier.stalled
    bench.driver.notifier.stalled = lambda now: (restart(now), stalled.set())[0]  # type: ignore[method-assign]
    async with asyncio.timeout(LIMIT_S):
        await stalled.wait()
    assert stats.notices_ended == {}
    bench.now += 0.06
    bench.driver.notifier.handle_timer(bench.now)

    assert stats.notices_ended == {"held_up": 1}
    bench.driver.stop()
