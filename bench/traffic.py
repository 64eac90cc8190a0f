"""What the plugin costs normal traffic, on a real pair: `python -m bench.traffic [--minutes 16] [--sglang 0.5.18]`.

Of a prefill server the plugin's hooks are taken out and put in again, request by request for the time to the first
token, burst by burst for throughput.
"""

import asyncio
import functools
import json
import statistics
import time

from bench.asked import asked
from bench.running import cpu_s
from bench.switched import Switch, in_turns, switched_spec
from bench.turns import WARM_UP, Turn, first_token_s, interval, ratio
from tests.demo.stage import prompt
from tests.pair.cores import prefill_apart
from tests.pair.running import Pair, running_pair
from tests.pair.traffic import Client, Order

PROMPTS = {200: 0.06, 1_000: 0.09, 4_000: 0.45}
"""Tokens, and the share of the time that each has."""

CLAIMED = 4_000
"""Prefill and decode are put apart for long prompts. A request costs the plugin the same whatever its length."""

BURST = 8
BURST_TOKENS = 1_000
BURST_SHARE = 0.4

Figures = dict[str, object]


def traffic(*, limit_s: float, sglang: str = "0.5.18") -> Figures:
    """`throughput_ratio`, `ttft_p50_ratio`: of the plugin to stock, each with its 95 % interval. `ttft`: by the tokens
    of a prompt.

    The sidecar reads what it is told at its own time, in either half. So all that it takes for a request is added to
    the time with the plugin, as if the request had waited for it.
    """
    with running_pair(switched_spec(sglang), "traffic") as pair, prefill_apart([pair]):
        return asyncio.run(_play(pair, limit_s))


async def _play(pair: Pair, limit_s: float) -> Figures:
    sidecar = pair.sidecar_pid()
    if sidecar is None:
        raise RuntimeError("no sidecar serves the pair")
    async with Client(pair) as client:
        switch = Switch(pair, client)
        for _ in range(WARM_UP):
            await first_token_s(client)
        began_s = cpu_s(sidecar)
        firsts = {
            tokens: await in_turns(
                switch, client, functools.partial(first_token_s, tokens=tokens), limit_s=limit_s * share
            )
            for tokens, share in PROMPTS.items()
        }
        spent_s = (cpu_s(sidecar) - began_s) / sum(map(len, firsts.values()))
        bursts = await in_turns(switch, client, _burst_s, limit_s=limit_s * BURST_SHARE)
    ttft = {str(tokens): _named(_with(taken, spent_s)) for tokens, taken in firsts.items()}
    claimed, burst = ttft[str(CLAIMED)], _named(bursts)
    return {
        "ttft_p50_ratio": claimed["ratio"],
        "ttft_p50_ratio_95": claimed["ratio_95"],
        "ttft": ttft,
        "sidecar_us_a_request": round(spent_s * 1e6, 1),
        "burst": burst,
        **_throughput(bursts),
    }


def _with(taken: list[Turn], spent_s: float) -> list[Turn]:
    return [(stock, ours + spent_s) for stock, ours in taken]


async def _burst_s(client: Client) -> float:
    """So many requests at once, until the last is answered."""
    began = time.monotonic()
    sent = [client.send(Order(text=prompt(BURST_TOKENS))) for _ in range(BURST)]
    answers = await asyncio.gather(*(half for one in sent for half in (one.prefill, one.decode)))
    if not all(answer.is_good for answer in answers):
        raise RuntimeError("an answer to normal traffic was bad")
    return time.monotonic() - began


def _named(taken: list[Turn]) -> Figures:
    low, high = interval(taken)
    return {
        "turns": len(taken),
        "stock_ms": round(1000 * statistics.median(turn[0] for turn in taken), 2),
        "plugin_ms": round(1000 * statistics.median(turn[1] for turn in taken), 2),
        "ratio": round(ratio(taken), 4),
        "ratio_95": [round(low, 4), round(high, 4)],
    }


def _throughput(bursts: list[Turn]) -> Figures:
    """Requests in a second: the inverse of the time that a burst takes."""
    low, high = interval(bursts)
    return {
        "throughput_ratio": round(1 / ratio(bursts), 4),
        "throughput_ratio_95": [round(1 / high, 4), round(1 / low, 4)],
    }


def main() -> None:
    words = asked("python -m bench.traffic", minutes=16.0)
    print(json.dumps(traffic(limit_s=words.minutes * 60, sglang=words.sglang), indent=2))


if __name__ == "__main__":
    main()
