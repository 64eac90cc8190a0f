"""Scenario `router`: what the end client waits when the real sglang router stands in front and P's operator aborts."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from tests.demo.figures import Measured, Told
from tests.demo.stage import Stage, prompt
from tests.pair.progress import say
from tests.pair.router import Router

REQUESTS = 6
TOKENS = 6_000


@dataclass(frozen=True)
class Ending:
    status: int
    at: float


@dataclass(frozen=True)
class RouterPlayed:
    """The router retries what failed, in new rooms. The work itself lies between the last retry's handshake and its
    answer; all the rest of what a client waited since the abort is lag.
    """

    stage: Stage
    answers: Sequence[asyncio.Task[Ending]]
    aborted_at: float
    timeout_s: float
    name: str = "router"

    async def measured(self) -> Measured:
        endings = sorted([await answer for answer in self.answers], key=lambda ending: ending.at)
        handshakes = self.stage.pair.events.all("in", role="prefill", tag="HANDSHAKE")
        retries = [event["t"] for event in handshakes if event["t"] > self.aborted_at][-REQUESTS:]
        lags = [0.0] * (REQUESTS - len(retries)) + [retry - self.aborted_at for retry in retries]
        waited, work = endings[-1].at - self.aborted_at, endings[-1].at - self.aborted_at - max(lags)
        say(f"  router: six answers within {waited:.1f} s of the abort, {work:.1f} s of it work")
        told = [
            Told(lag, lag > self.timeout_s / 2, str(ending.status)) for lag, ending in zip(lags, endings, strict=True)
        ]
        bad = sum(ending.status != 200 for ending in endings)
        complaints = (f"{bad} of {REQUESTS} clients got an error",) if bad else ()
        return Measured(self.name, REQUESTS, tuple(told), complaints)


async def behind_router(stage: Stage, router: Router, timeout_s: float) -> RouterPlayed:
    aborts = len(stage.pair.events.all("abort", role="prefill"))
    handshakes = len(stage.pair.events.all("in", role="prefill", tag="HANDSHAKE"))
    answers = _send_all(router, 3 * timeout_s + 120)
    await stage.pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", count=handshakes + REQUESTS)
    await stage.client.abort_all()
    ranks = stage.pair.spec.prefill.ranks
    aborted = await stage.pair.events.wait_for("abort", role="prefill", count=aborts + ranks)
    return RouterPlayed(stage, answers, aborted["t"], timeout_s)


def _send_all(router: Router, limit_s: float) -> list[asyncio.Task[Ending]]:
    return [asyncio.create_task(_send(router.url, prompt(TOKENS), limit_s)) for _ in range(REQUESTS)]


async def _send(url: str, text: str, limit_s: float) -> Ending:
    body = {"text": text, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True, "temperature": 0}}
    timeout = aiohttp.ClientTimeout(total=limit_s)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.post(f"{url}/generate", json=body) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    return Ending(status, time.monotonic())
