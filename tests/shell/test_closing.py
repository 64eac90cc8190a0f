"""Sockets that are closed at the very moment something happens to them: in a process of its own, since what this is
about cannot be interrupted.
"""

import subprocess
import sys
from pathlib import Path

CHURN = """
import asyncio, random, time, zmq
from sidecar.model import DecodeEndpoint
from sidecar.shell.push import PushPool

class Listener:
    def endpoint_up(self, endpoint): ...
    def endpoint_down(self, endpoint): ...

async def main():
    context = zmq.Context()
    pool = PushPool(Listener(), context=context)
    refusing = [DecodeEndpoint("127.0.0.1", port) for port in range(1, 9)]
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        for endpoint in refusing:
            pool.connect(endpoint)
        moment = time.perf_counter() + random.random() * 0.002
        while time.perf_counter() < moment:
            pass
        for endpoint in refusing:
            pool.close(endpoint)
        await asyncio.sleep(0)
    context.destroy(linger=0)

asyncio.run(main())
"""


def test_closing_a_socket_while_its_connection_fails_stops_nothing() -> None:
    """libzmq's I/O thread and ours once waited for each other for good: within a second of this."""
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", CHURN], cwd=root, timeout=60, check=False)

    assert ended.returncode == 0
