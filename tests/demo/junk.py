"""Scenario `junk`: messages that nobody at P understands, then normal traffic.

A prefill rank's port is named by its bootstrap server to whoever asks, and reads what anybody sends. In stock the first
of these messages ends the rank's control thread: /health stays 200 and nothing is served any more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import zmq

from tests.demo.figures import Measured, Told, told
from tests.demo.stage import Stage, prompt
from tests.pair.answers import Answer
from tests.pair.running import Pair
from tests.pair.traffic import Order, Sent

REQUESTS = 8
TOKENS = 500
ARRIVAL_LIMIT_S = 2.0
LINGER_MS = 2_000
LAST = "END-OF-JUNK"

BURST: tuple[list[bytes], ...] = (
    [b"HELLO"],
    [b""],
    [b"\xff\xfe\x00junk"],
    [b"HELLO", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10"],
    [b"ABORT"],
    [b"ABORT", b"x"],
    [b"ABORT_ACK", b"7"],
    [b"None"],
    [b"None", b"127.0.0.1", b"port", b"session"],
    [b"7", b"0", b"0"],
    [b"7", b"0", b"0", b"DRAINED_ABORT: nobody"],
    [b"KV_STATUS", b"7", b"0", b"0", b"nobody"],
    [b"7", b"127.0.0.1", b"1", b"session"],
    [b"7", b"127.0.0.1", b"port", b"session", b"abc", b"0", b"", b"1", b"", b""],
    [b"-7", b"127.0.0.1", b"1", b"session", b"", b"0", b"", b"many", b"", b""],
    [b"9" * 4_000, b"127.0.0.1", b"1", b"session", b"", b"0", b"", b"1", b"", b""],
    [b"NixlMsgGuard"],
    [b"NixlMsgGuard", b"HELLO"],
    [b"NixlMsgGuard", b"ABORT"],
    [b"NixlMsgGuard", b"None", b"x"],
    [b"NixlMsgGuard", b"7", b"127.0.0.1", b"port", b"agent", b"abc", b"0", b"1"],
    [b"junk" * 25_000],
    [b"x"] * 200,
)
TIMES = 10


@dataclass(frozen=True)
class JunkPlayed:
    """What is left is to wait for D's answers. Lag: how much longer than before the junk a request takes."""

    before: Sequence[Answer]
    after: Sequence[Sent]
    name: str = "junk"

    async def measured(self) -> Measured:
        normal_s = max(answer.took_s for answer in self.before)
        answers = [await one.decode for one in self.after]
        lags: list[Told] = [told(answer, answer.sent_at + normal_s) for answer in answers]
        bad = sum(not answer.is_good for answer in answers)
        complaints = (f"{bad} of {len(answers)} requests after the junk were not served",) if bad else ()
        return Measured(self.name, len(answers), tuple(lags), complaints)


async def junk(stage: Stage) -> JunkPlayed:
    before = [await one.decode for one in _send_all(stage)]
    if not all(answer.is_good for answer in before):
        raise RuntimeError(f"the pair does not serve normal traffic: {before}")
    for port in await rank_ports(stage.pair):
        await send_junk(stage, port)
    return JunkPlayed(before, _send_all(stage))


def _send_all(stage: Stage) -> list[Sent]:
    return [stage.client.send(Order(text=prompt(TOKENS))) for _ in range(REQUESTS)]


async def rank_ports(pair: Pair) -> list[int]:
    """As decode learns them, and as anybody can."""
    side = pair.spec.prefill
    url = f"http://127.0.0.1:{pair.prefill.ports.bootstrap}/route"
    ports = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        for tp_rank in range(side.tp):
            for pp_rank in range(side.pp):
                rank = {
                    "prefill_dp_rank": 0,
                    "prefill_cp_rank": 0,
                    "target_tp_rank": tp_rank,
                    "target_pp_rank": pp_rank,
                }
                async with http.get(url, params=rank) as response:
                    response.raise_for_status()
                    ports.append(int((await response.json())["rank_port"]))
    return ports


async def send_junk(stage: Stage, port: int) -> None:
    await asyncio.to_thread(_push, port, [*(BURST * TIMES), [LAST.encode()]])
    try:
        await stage.pair.events.wait_for("in", role="prefill", port=port, tag=LAST, limit_s=ARRIVAL_LIMIT_S)
    except TimeoutError:
        return  # nobody reads there any more


def _push(port: int, messages: Sequence[list[bytes]]) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = LINGER_MS
        socket.sndtimeo = LINGER_MS
        socket.connect(f"tcp://127.0.0.1:{port}")
        for message in messages:
            socket.send_multipart(message)
