"""Sockets that are closed at the very moment something happens to them."""

import subprocess
import sys
from pathlib import Path

from tests.shell.scene import Service, decode

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
    """libzmq's I/O thread and ours once waited for each other for good: within a second of this. In a process of its
    own, since that cannot be interrupted."""
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", CHURN], cwd=root, timeout=60, check=False)

    assert ended.returncode == 0


async def test_what_comes_for_an_endpoint_that_has_just_been_closed_opens_nothing(service: Service) -> None:
    """In one pump an endpoint may give its socket away and be offered something after that. A socket that nobody has
    asked for would come up unheard, and what is handed off there never settle."""
    with decode() as waiting:
        service.push.connect(waiting.endpoint)
        service.push.close(waiting.endpoint)

        assert service.push.carry(waiting.endpoint, [[b"1", b"0", b"0"]]) == 0
        assert len(service.push) == 0
