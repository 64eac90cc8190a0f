"""Memory, CPU and time to start: idle, with records, and by the number of endpoints. All must grow at most linearly."""

import contextlib
import resource
import time
import urllib.request
from collections.abc import Iterator
from statistics import median

from bench.running import LIMIT_S, RunningSidecar, percentile, running_sidecar, wait_until
from bench.samples import Figures
from bench.sink import sink
from bench.source import Source
from tests.pair.ports import free_port

ENDPOINTS = (100, 1_000, 4_000, 10_000)
RECORDS = (1_024, 4_096)
FEW = 64
SETTLE_AFTER_S = 1.0
SCRAPES = 5
DESCRIPTORS = 65_536
EACH_TAKES = 2
"""Descriptors of the sink, at most. The sidecar does with those it has: endpoints then take turns."""


def at_start() -> Figures:
    starts_s = []
    for _ in range(5):
        with running_sidecar(admin="127.0.0.1:0") as sidecar:
            starts_s.append(sidecar.ready_s)
            rss_mb = sidecar.rss_mb()
    return {"start_s": round(percentile(starts_s, 0.5), 3), "idle_mb": round(rss_mb, 1)}


def thousand(*, idle_s: float) -> Figures:
    with running_sidecar() as sidecar, sink(1000) as decode, Source(sidecar.socket) as source:
        empty_mb = sidecar.rss_mb()
        rooms, openings = source.openings(decode.addresses, 1000)
        endings = source.endings(rooms)
        decode.expect(1000)
        began = time.monotonic()
        source.write(openings + endings)
        connected_s = max(decode.heard().values()) - began
        kb = (sidecar.rss_mb() - empty_mb) * 1024 / 1000
        time.sleep(6.0)  # settles
        idle_pct = _idle_pct(sidecar, idle_s)
    return {
        "connect_1000_s": round(connected_s, 3),
        "kb_per_endpoint": round(kb, 1),
        "idle_cpu_pct": round(idle_pct, 2),
    }


def growth(*, idle_s: float) -> dict[str, dict[str, Figures]]:
    """By the number of endpoints with a record each, and of records at few endpoints. Where the system allows the sink
    no more descriptors, the largest number is left out."""
    with _many_descriptors() as limit:
        counts = [count for count in ENDPOINTS if count * EACH_TAKES <= limit]
        by_endpoints = {str(count): _with(count, count, idle_s) for count in counts}
    return {"endpoints": by_endpoints, "records": {str(count): _with(FEW, count, idle_s) for count in RECORDS}}


def _with(endpoints: int, rooms: int, idle_s: float) -> Figures:
    admin = f"127.0.0.1:{free_port()}"
    flags = ("--settle-after-s", str(SETTLE_AFTER_S))
    with running_sidecar(*flags, admin=admin) as sidecar, sink(endpoints) as decode, Source(sidecar.socket) as source:
        opened, openings = source.openings(decode.addresses, rooms)
        endings = source.endings(opened)
        decode.expect(rooms)
        began = time.monotonic()
        source.write(openings + endings)
        told_s = max(decode.heard().values()) - began
        wait_until(lambda: source.settled >= rooms, "not all settle")
        scrapes_s = [_scrape_s(admin) for _ in range(SCRAPES)]
        return {
            "told_s": round(told_s, 2),
            "rss_mb": round(sidecar.rss_mb(), 1),
            "idle_cpu_pct": round(_idle_pct(sidecar, idle_s), 2),
            "scrape_ms": round(median(scrapes_s) * 1000, 1),
        }


def _scrape_s(admin: str) -> float:
    time.sleep(0.2)  # what was put together is served again for 0.1 s
    began = time.monotonic()
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=LIMIT_S) as answer:
        answer.read()
    return time.monotonic() - began


def _idle_pct(sidecar: RunningSidecar, idle_s: float) -> float:
    before_s = sidecar.cpu_s()
    time.sleep(idle_s)
    return (sidecar.cpu_s() - before_s) / idle_s * 100


@contextlib.contextmanager
def _many_descriptors() -> Iterator[int]:
    """As many as may be, for this process and its children."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, max(before[1], DESCRIPTORS)))
    try:
        yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
