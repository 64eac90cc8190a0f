"""What the plugin costs normal traffic, on real engines: `python -m bench.traffic [--minutes 4] [--sglang 0.5.18]`.

Two prefill servers, stock and with the plugin, share one decode server and one machine, and take turns: request by
request for the time to the first token, burst by burst for throughput.
"""

import asyncio
import json
import statistics
import time

from bench.asked import asked
from bench.turns import Turn, first_tokens, interval, players, ratio, turns
from tests.demo.stage import prompt
from tests.pair.cores import prefill_apart
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

BURST = 8
BURST_TOKENS = 1_000

Figures = dict[str, object]


def traffic(*, limit_s: float, sglang: str = "0.5.18") -> Figures:
    """`throughput_ratio`, `ttft_p50_ratio`: of the plugin to stock, each with its 95 % interval, from as many turns as
    half of `limit_s` has room for. `of_start`: in each of two starts. Two stock servers can differ by some per cent,
    mostly the one that was started later is slower, so each is that once.
    """
    firsts, bursts = [], []
    for is_stock_first in (True, False):
        first, burst = _one_start(sglang, limit_s=limit_s / 2, is_stock_first=is_stock_first)
        firsts.append(first)
        bursts.append(burst)
    return _named("ttft_p50", firsts) | _named("burst", bursts) | _throughput(bursts)


def _one_start(sglang: str, *, limit_s: float, is_stock_first: bool) -> tuple[list[Turn], list[Turn]]:
    """Turns of stock and the plugin, in this order whichever was started first."""
    stock = PairSpec.of(sglang=sglang, plugin=False)
    ours = PairSpec.of(sglang=sglang, plugin=False, prefill={"plugin": True})
    named = [("traffic-stock", stock), ("traffic-plugin", ours)]
    (name, spec), (other_name, other_spec) = named if is_stock_first else named[::-1]
    with (
        running_pair(spec, name) as one,
        running_pair(other_spec, other_name, decode=one.decode) as other,
        prefill_apart([one, other]),
    ):
        pairs = (one, other) if is_stock_first else (other, one)
        return asyncio.run(_play(*pairs, limit_s=limit_s / 2))


async def _play(stock: Pair, ours: Pair, *, limit_s: float) -> tuple[list[Turn], list[Turn]]:
    async with players(stock, ours) as (one, other):
        firsts = await first_tokens(one, other, limit_s=limit_s)
        bursts = await turns(_burst_s, one, other, limit_s=limit_s)
    return firsts, bursts


async def _burst_s(client: Client) -> float:
    """So many requests at once, until the last is answered."""
    began = time.monotonic()
    sent = [client.send(Order(text=prompt(BURST_TOKENS))) for _ in range(BURST)]
    answers = await asyncio.gather(*(half for one in sent for half in (one.prefill, one.decode)))
    if not all(answer.is_good for answer in answers):
        raise RuntimeError("an answer to normal traffic was bad")
    return time.monotonic() - began


def _named(name: str, starts: list[list[Turn]]) -> Figures:
    taken = [turn for start in starts for turn in start]
    low, high = interval(starts)
    return {
        f"{name}_turns": len(taken),
        f"{name}_stock_ms": round(1000 * statistics.median(turn[0] for turn in taken), 2),
        f"{name}_plugin_ms": round(1000 * statistics.median(turn[1] for turn in taken), 2),
        f"{name}_ratio": round(ratio(starts), 4),
        f"{name}_ratio_95": [round(low, 4), round(high, 4)],
        f"{name}_ratio_of_start": [round(ratio([start]), 4) for start in starts],
    }


def _throughput(bursts: list[list[Turn]]) -> Figures:
    """Requests in a second: the inverse of the time that a burst takes."""
    low, high = interval(bursts)
    return {
        "throughput_ratio": round(1 / ratio(bursts), 4),
        "throughput_ratio_95": [round(1 / high, 4), round(1 / low, 4)],
    }


def main() -> None:
    words = asked("python -m bench.traffic", minutes=4.0)
    print(json.dumps(traffic(limit_s=words.minutes * 60, sglang=words.sglang), indent=2))


if __name__ == "__main__":
    main()
