"""The loop's pulse: how late it is, and what hangs on it."""

import asyncio
import time

import pytest

from sidecar.shell import pulse as pulse_module
from sidecar.shell.pulse import Pulse
from tests.shell.scene import LIMIT_S


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "INTERVAL_S", 0.01)


async def test_what_hangs_on_it_is_called_every_so_many_beats() -> None:
    loop, calls, done = asyncio.get_running_loop(), [0, 0], asyncio.Event()

    def often() -> None:
        calls[0] += 1
        if calls[0] == 6:
            done.set()

    def seldom() -> None:
        calls[1] += 1

    pulse = Pulse(loop=loop, clock=time.monotonic, every={0.01: often, 0.03: seldom})
    pulse.start()
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    pulse.stop()

    assert calls in ([6, 2], [6, 1])  # the sixth beat calls both, in either order


async def test_a_loop_that_was_held_up_is_seen() -> None:
    beat = asyncio.Event()
    pulse = Pulse(loop=asyncio.get_running_loop(), clock=time.monotonic, every={0.01: beat.set})
    pulse.start()
    time.sleep(0.1)  # noqa: ASYNC251 - the fault itself
    async with asyncio.timeout(LIMIT_S):
        await beat.wait()
    pulse.stop()

    assert pulse.max_lag_s > 0.05


async def test_a_loop_that_stood_still_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "STALL_S", 0.02)
    stalled = asyncio.Event()
    pulse = Pulse(loop=asyncio.get_running_loop(), clock=time.monotonic, on_stall=stalled.set)
    pulse.start()
    time.sleep(0.1)  # noqa: ASYNC251 - the point of it
    async with asyncio.timeout(LIMIT_S):
        await stalled.wait()
    pulse.stop()
