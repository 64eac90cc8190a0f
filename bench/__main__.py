"""`python -m bench [--quick]`: prints a table and writes build/bench.json."""

import argparse
import json
import os
import platform
import time
from pathlib import Path

from bench.endpoints import head_of_line
from bench.enqueue import enqueue
from bench.footprint import at_start, growth, thousand
from bench.in_scheduler import in_scheduler
from bench.latency import latency
from bench.running import running_sidecar
from bench.samples import Samples, save
from bench.throughput import throughput
from bench.traffic import traffic
from bench.truth import truth_table
from tests.engine.figures import scheduler_cost

OUTPUT = Path("build/bench.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not how fast")
    parser.add_argument("--without-engine", action="store_true", help="leave out what needs an engine's venv or a pair")
    asked = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    samples: Samples = {}
    figures = sidecar_figures(is_quick=asked.quick, samples=samples)
    if not asked.without_engine:
        figures |= engine_figures(is_quick=asked.quick)
    figures["machine"] = machine(load)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=2) + "\n")
    save(samples)
    print(json.dumps(figures, indent=2))
    print(f"written to {OUTPUT} in {time.monotonic() - began:.0f} s; `python -m bench.plots` draws it")


def sidecar_figures(*, is_quick: bool, samples: Samples) -> dict[str, object]:
    scale = 10 if is_quick else 1
    idle_s = 1.0 if is_quick else 5.0
    say("a fact on its thread, and from there to decode")
    ways = latency(starts=1 if is_quick else 8, count=400 // scale, samples=samples)
    with running_sidecar() as sidecar:
        queueing = enqueue(sidecar, count=10_000 // scale, times=1 if is_quick else 5, samples=samples)
    say("notices in a CPU second")
    rates = {
        str(endpoints): throughput(endpoints=endpoints, rounds=1 if is_quick else 25, burst=4_000 // scale)
        for endpoints in (1, 64, 1024)
    }
    say("memory and start")
    start, many, grown = at_start(), thousand(idle_s=idle_s), growth(idle_s=idle_s)
    say("what a notice meets")
    truths = truth_table()
    say("living endpoints beside dead ones")
    lines = head_of_line(
        endpoints=100 if is_quick else 1_000, notices=2_000 // scale, rounds=1 if is_quick else 3, samples=samples
    )
    return {
        "enqueue": queueing,
        "latency": ways,
        "throughput": rates,
        "throughput_ratio": {endpoints: rate["ratio"] for endpoints, rate in rates.items()},
        "memory": {"idle_mb": start["idle_mb"], "kb_per_endpoint": many["kb_per_endpoint"]},
        "growth": grown,
        "start_s": start["start_s"],
        "idle_cpu_pct_1000": many["idle_cpu_pct"],
        "dead_half": lines,
        "dead_half_p99_ratio": lines["ratio"],
        "connect_1000_s": many["connect_1000_s"],
        "truth_table": truths,
    }


def engine_figures(*, is_quick: bool) -> dict[str, object]:
    say("what the hooks cost the scheduler's thread")
    cost = scheduler_cost(scale=10 if is_quick else 1)
    say("what facts cost it in a real prefill server under load")
    inside = in_scheduler(limit_s=10.0 if is_quick else 60.0)
    say("normal traffic on a real pair")
    return {"scheduler": cost, "in_scheduler": inside, "traffic": traffic(limit_s=20.0 if is_quick else 960.0)}


def say(what: str) -> None:
    print(f"{what} ...", flush=True)


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
