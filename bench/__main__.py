"""`python -m bench [--quick]`: prints a table and writes build/bench.json."""

import argparse
import json
import time
from pathlib import Path

from bench.figures import fact_on_the_caller, fact_to_decode, footprint, notices_per_cpu_second
from bench.running import running_sidecar

OUTPUT = Path("build/bench.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not how fast")
    scale = 10 if parser.parse_args().quick else 1
    began = time.monotonic()
    with running_sidecar() as sidecar:
        figures: dict[str, object] = {
            "fact_to_decode": fact_to_decode(sidecar, count=1_000 // scale),
            "fact_on_the_caller": fact_on_the_caller(sidecar, count=20_000 // scale),
        }
    figures["notices_per_cpu_s"] = {
        str(endpoints): notices_per_cpu_second(endpoints=endpoints, rounds=5, burst=20_000 // scale)
        for endpoints in (1, 64, 1024)
    }
    figures["footprint"] = footprint()
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    print(f"written to {OUTPUT} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
