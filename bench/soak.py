"""`python -m bench.soak [--minutes 30]`: a steady load, and whether the sidecar grows under it. Writes build/soak.json.

Rooms end all the time, at 64 endpoints, more of them than there may be records; after each minute memory and CPU are
looked at. What grows without end shows in the slope of the second half.
"""

import argparse
import json
import time
from pathlib import Path

from bench.running import running_sidecar, wait_until
from bench.samples import Figures
from bench.sink import sink
from bench.source import Source
from bench.throughput import relay

ENDPOINTS, BURST, EVERY_S = 64, 100, 0.5
SETTLE_AFTER_S = 1.0
OUTPUT = Path("build/soak.json")


def soak(*, minutes: float) -> dict[str, object]:
    looks: list[Figures] = []
    flags = ("--settle-after-s", str(SETTLE_AFTER_S))
    with running_sidecar(*flags) as sidecar, sink(ENDPOINTS) as decode, Source(sidecar.socket) as source:
        began, told = time.monotonic(), 0
        while (at_s := time.monotonic() - began) < minutes * 60:
            relay(source, decode, BURST)
            told += BURST
            if at_s >= 60 * len(looks):
                looks.append({"at_s": round(at_s, 1), "rss_mb": round(sidecar.rss_mb(), 2), "told": told})
                print(json.dumps(looks[-1]), flush=True)
            time.sleep(EVERY_S)
        wait_until(lambda: source.settled >= told, "not all settle")
        cpu_pct = sidecar.cpu_s() / (time.monotonic() - began) * 100
    late = looks[len(looks) // 2 :]
    return {
        "told": told,
        "cpu_pct": round(cpu_pct, 2),
        "rss_mb": [look["rss_mb"] for look in looks],
        "mb_per_hour_of_second_half": round(slope(late) * 3600, 3),
    }


def slope(looks: list[Figures]) -> float:
    """MB in a second, by least squares; 0 for fewer than two looks."""
    if len(looks) < 2:
        return 0.0
    mean_t = sum(look["at_s"] for look in looks) / len(looks)
    mean_mb = sum(look["rss_mb"] for look in looks) / len(looks)
    over = sum((look["at_s"] - mean_t) * (look["rss_mb"] - mean_mb) for look in looks)
    return over / sum((look["at_s"] - mean_t) ** 2 for look in looks)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    found = soak(minutes=parser.parse_args().minutes)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
