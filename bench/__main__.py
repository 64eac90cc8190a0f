"""`python -m bench [--quick]`: prints a table and writes build/bench.json."""

import argparse
import json
import os
import platform
import time
from pathlib import Path

from bench.endpoints import dead_half, thousand
from bench.figures import enqueue, fact_to_decode, footprint
from bench.running import running_sidecar
from bench.throughput import throughput
from tests.engine.figures import scheduler_cost

OUTPUT = Path("build/bench.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not how fast")
    is_quick = parser.parse_args().quick
    scale = 10 if is_quick else 1
    began, load = time.monotonic(), os.getloadavg()[0]
    with running_sidecar() as sidecar:
        latency = fact_to_decode(sidecar, count=1_000 // scale)
        queueing = enqueue(sidecar, count=10_000 // scale)
    rates = {
        str(endpoints): throughput(endpoints=endpoints, rounds=1 if is_quick else 5, burst=4_000 // scale)
        for endpoints in (1, 64, 1024)
    }
    start, many = footprint(), thousand(idle_s=1.0 if is_quick else 5.0)
    print("what the hooks cost the scheduler's thread ...", flush=True)
    scheduler = scheduler_cost(scale=scale)
    halves = dead_half(living=50 if is_quick else 500, notices=2_000 // scale, rounds=1 if is_quick else 3)
    figures = {
        "enqueue": queueing,
        "latency": latency,
        "throughput": rates,
        "throughput_ratio": {endpoints: rate["ratio"] for endpoints, rate in rates.items()},
        "memory": {"idle_mb": start["idle_mb"], "kb_per_endpoint": many["kb_per_endpoint"]},
        "start_s": start["start_s"],
        "idle_cpu_pct_1000": many["idle_cpu_pct"],
        "dead_half": halves,
        "dead_half_p99_ratio": halves["ratio"],
        "connect_1000_s": many["connect_1000_s"],
        "scheduler": scheduler,
        "machine": machine(load),
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    print(f"written to {OUTPUT} in {time.monotonic() - began:.0f} s")


def machine(load_before: float) -> dict[str, object]:
    """What it ran on, and how busy that was with other things before."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(load_before, 2),
    }


if __name__ == "__main__":
    main()
