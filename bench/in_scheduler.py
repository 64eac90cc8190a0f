"""What facts cost the scheduler's own thread in a real prefill server under load, while half of its requests are given
up: `python -m bench.in_scheduler [--minutes 1.5]`.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.asked import asked
from bench.running import LIMIT_S, wait_until
from bench.samples import Figures, percentiles
from tests.demo.stage import prompt
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

AT_ONCE = 8
TOKENS = 200
ABORT_AFTER_S = 0.005

READER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
stream, _ = listener.accept()
while stream.recv(65536): pass
"""


def in_scheduler(*, limit_s: float, sglang: str = "0.5.18") -> Figures:
    """`append`, `hand_over` and `given_up` are the plugin's; beside each hand-over a bare send of as many bytes, to
    another process too, and `nothing`, which is what taking the time takes. By the clock and, `cpu`, of the thread: a
    thread of Python's may lose the GIL to another for milliseconds at any line.
    """
    with bare_reader() as path:
        spec = PairSpec.of(sglang=sglang, prefill={"env": {"PD_SHIM_TIMINGS": str(path)}})
        with running_pair(spec, "in-scheduler") as pair:
            timings_ns = asyncio.run(_play(pair, limit_s))
    figures: Figures = {f"{name}_count": len(pairs) for name, pairs in timings_ns.items()}
    for name, pairs in timings_ns.items():
        figures |= percentiles(name, [clock / 1e9 for clock, _ in pairs])
        figures |= percentiles(f"{name}_cpu", [cpu / 1e9 for _, cpu in pairs])
    figures["hand_over_ratio"] = round(figures["hand_over_p50_us"] / figures["bare_send_p50_us"], 2)
    return figures


@contextmanager
def bare_reader() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pds-") as folder:
        path = Path(folder) / "bare"
        reader = subprocess.Popen([sys.executable, "-c", READER, str(path)])
        try:
            wait_until(path.exists, "the reader does not listen")
            yield path
        finally:
            reader.kill()
            reader.wait(LIMIT_S)


async def _play(pair: Pair, limit_s: float) -> dict[str, list[tuple[int, int]]]:
    ends_at = time.monotonic() + limit_s
    async with Client(pair) as client:
        await asyncio.gather(*(_load(client, ends_at, number) for number in range(AT_ONCE)))
        info = await client.server_info("prefill")
    timings: dict[str, list[tuple[int, int]]] = info["internal_states"][0]["pd_timings"]
    return timings


async def _load(client: Client, ends_at: float, number: int) -> None:
    """Every other request is given up soon after it was sent."""
    while time.monotonic() < ends_at:
        number += 1
        sent = client.send(Order(text=prompt(TOKENS), max_new_tokens=1))
        if number % 2:
            await asyncio.sleep(ABORT_AFTER_S)
            await client.abort(sent.order.rid)
        await asyncio.gather(sent.prefill, sent.decode)


def main() -> None:
    words = asked("python -m bench.in_scheduler", minutes=1.5)
    print(json.dumps(in_scheduler(limit_s=words.minutes * 60, sglang=words.sglang), indent=2))


if __name__ == "__main__":
    main()
