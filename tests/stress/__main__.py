"""`python -m tests.stress --minutes 30`: rounds on one pair, build/stress.json; fails if one went wrong."""

import argparse
import asyncio
import itertools
import json
import sys
import time

from tests.pair.paths import build_dir
from tests.pair.progress import say
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client
from tests.stress.plan import plan
from tests.stress.playing import Player, Tally, expected_outputs

TIMEOUT_S = 120
ANSWER_LIMIT_S = TIMEOUT_S + 30.0
REPORT_EVERY_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1, help="stages of prefill")
    parser.add_argument("--sglang", default="0.5.18")
    asked = parser.parse_args()
    spec = PairSpec.of(sglang=asked.sglang, plugin=True, tp=asked.tp, timeout_s=TIMEOUT_S, prefill={"pp": asked.pp})
    with running_pair(spec, "stress") as pair:
        tally = asyncio.run(_play(pair, asked.seed, asked.minutes * 60.0))
    report = {"tp": asked.tp, "pp": asked.pp, "seed": asked.seed, "counts": tally.counts, "wrongs": tally.wrongs}
    path = build_dir() / "stress.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{json.dumps(report, indent=2)}\nwritten to {path}")
    return 1 if tally.wrongs else 0


async def _play(pair: Pair, seed: int, limit_s: float) -> Tally:
    """Ends early once something was wrong: what is left then is what there is to look at."""
    async with Client(pair, limit_s=ANSWER_LIMIT_S) as client:
        player = Player(pair, client, await expected_outputs(client))
        ends_at = time.monotonic() + limit_s
        report_at = 0.0
        numbers = itertools.count()
        while time.monotonic() < ends_at and not player.tally.wrongs:
            await player.play(plan(seed, next(numbers)))
            if time.monotonic() > report_at:
                say(f"stress: {dict(player.tally.counts)}")
                report_at = time.monotonic() + REPORT_EVERY_S
    return player.tally


if __name__ == "__main__":
    sys.exit(main())
