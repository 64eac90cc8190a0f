"""`python -m tests.faults`: random faults for as long as asked; build/faults-long.json; fails if a promise broke."""

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict
from statistics import median

from tests.faults.actors import Stage
from tests.faults.long_play import DECODES, ENGINES, PORTS, LongPlay
from tests.pair.paths import build_dir

SIDECAR_LIMIT_MB = 150.0
DESCRIPTORS_LIMIT = 128 + 4 * DECODES * PORTS + 4 * ENGINES
GROWTH_LIMIT_MB = 16.0
STEADY_AFTER_S = 600.0
"""By then records and tombstones are as many as they get at the pace of this play."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FAULT_SECONDS", "3600")))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        stage = Stage(stack)
        play = LongPlay(stage, asked.seed)
        play.play(asked.seconds)
        play.end()
        account, seen = stage.ledger.account(), play.seen
        growth_mb = grown(seen.witness_mb)
    report = {
        "seconds": asked.seconds,
        "seed": asked.seed,
        **asdict(account),
        "orphaned": len(seen.orphaned),
        "counts": dict(sorted(seen.counts.items())),
        "sidecar_mb_most": round(seen.sidecar_mb, 1),
        "sidecar_descriptors_most": seen.sidecar_descriptors,
        "rank_mb_grown": round(growth_mb, 1),
        "longest_call_ms": round(seen.longest_call_s * 1000, 1),
    }
    path = build_dir() / "faults-long.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{json.dumps(report, indent=2)}\nwritten to {path}")
    broken = account.lost or account.unasked or seen.sidecar_mb > SIDECAR_LIMIT_MB
    broken = broken or seen.sidecar_descriptors > DESCRIPTORS_LIMIT
    return 1 if broken or (asked.seconds >= STEADY_AFTER_S and growth_mb > GROWTH_LIMIT_MB) else 0


def grown(samples_mb: list[float]) -> float:
    """From the second quarter to the last."""
    quarter = max(1, len(samples_mb) // 4)
    return median(samples_mb[-quarter:]) - median(samples_mb[quarter : 2 * quarter] or samples_mb)


if __name__ == "__main__":
    sys.exit(main())
