"""`python -m bench.push [--minutes 4] [--sglang 0.5.18]`: what PD_SIDECAR_PUSH=all costs a request, on a real pair.

Two prefill servers share one decode server and one machine: one pushes as stock does, of the other the sidecar carries
all. They take turns request by request. Measured is the time to the first token at decode's client, which waits for
the Success. Prints one JSON object: medians, the ratio and its 95 % interval by bootstrap over turns.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence

from tests.demo.stage import prompt
from tests.pair.cores import prefill_apart
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

TOKENS = 200
WARM_UP = 10
RESAMPLES = 2_000


async def first_token_s(client: Client) -> float:
    """One token is asked for: the answer is the first token."""
    began = time.monotonic()
    sent = client.send(Order(text=prompt(TOKENS), max_new_tokens=1))
    answers = await asyncio.gather(sent.prefill, sent.decode)
    if not all(answer.is_good for answer in answers):
        raise RuntimeError(f"an answer to normal traffic was bad: {answers}")
    return time.monotonic() - began


async def turns(plain: Pair, carrying: Pair, *, limit_s: float) -> list[tuple[float, float]]:
    async with Client(plain) as one, Client(carrying) as other:
        for _ in range(WARM_UP):
            await first_token_s(one)
            await first_token_s(other)
        taken: list[tuple[float, float]] = []
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if len(taken) % 2:
                after = await first_token_s(other)
                taken.append((await first_token_s(one), after))
            else:
                before = await first_token_s(one)
                taken.append((before, await first_token_s(other)))
        parcels = (await other.server_info("prefill"))["internal_states"][0]
        print(f"prefill with all: {json.dumps(parcels.get('pd_sidecar', {}).get('parcels'))}", flush=True)
        return taken


def ratio(taken: Sequence[tuple[float, float]]) -> float:
    return statistics.median(pair[1] for pair in taken) / statistics.median(pair[0] for pair in taken)


def interval(taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    draw = random.Random(0)  # noqa: S311 - not a secret
    ratios = sorted(ratio(draw.choices(taken, k=len(taken))) for _ in range(RESAMPLES))
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.push")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--sglang", default="0.5.18")
    words = parser.parse_args()
    plain = PairSpec.of(sglang=words.sglang)
    carrying = PairSpec.of(sglang=words.sglang, prefill={"env": {"PD_SIDECAR_PUSH": "all"}})
    with (
        running_pair(plain, "push-notices") as one,
        running_pair(carrying, "push-all", decode=one.decode) as other,
        prefill_apart([one, other]),
    ):
        taken = asyncio.run(turns(one, other, limit_s=words.minutes * 60))
    low, high = interval(taken)
    figures = {
        "turns": len(taken),
        "notices_ms": round(1000 * statistics.median(pair[0] for pair in taken), 2),
        "all_ms": round(1000 * statistics.median(pair[1] for pair in taken), 2),
        "ttft_p50_ratio": round(ratio(taken), 4),
        "ratio_95": [round(low, 4), round(high, 4)],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
