"""`python -m bench.push [--minutes 4] [--sglang 0.5.18]`: what PD_SIDECAR_PUSH=all costs a request, on a real pair.

Two prefill servers share one decode server and one machine: one pushes as stock does, of the other the sidecar carries
all. Prints one JSON object: medians of the time to the first token, their ratio and its 95 % interval.
"""

import asyncio
import json
import statistics

from bench.asked import asked
from bench.turns import Turn, first_tokens, interval, players, ratio
from tests.pair.cores import prefill_apart
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec


async def play(plain: Pair, carrying: Pair, *, limit_s: float) -> list[Turn]:
    async with players(plain, carrying) as (one, other):
        taken = await first_tokens(one, other, limit_s=limit_s)
        parcels = (await other.client.server_info("prefill"))["internal_states"][0]
        print(f"prefill with all: {json.dumps(parcels.get('pd_sidecar', {}).get('parcels'))}", flush=True)
        return taken


def main() -> None:
    words = asked("python -m bench.push", minutes=4.0)
    plain = PairSpec.of(sglang=words.sglang)
    carrying = PairSpec.of(sglang=words.sglang, prefill={"env": {"PD_SIDECAR_PUSH": "all"}})
    with (
        running_pair(plain, "push-notices") as one,
        running_pair(carrying, "push-all", decode=one.decode) as other,
        prefill_apart([one, other]),
    ):
        taken = asyncio.run(play(one, other, limit_s=words.minutes * 60))
    low, high = interval(taken)
    figures = {
        "turns": len(taken),
        "notices_ms": round(1000 * statistics.median(turn[0] for turn in taken), 2),
        "all_ms": round(1000 * statistics.median(turn[1] for turn in taken), 2),
        "ttft_p50_ratio": round(ratio(taken), 4),
        "ratio_95": [round(low, 4), round(high, 4)],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
