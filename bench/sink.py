"""Decode endpoints in a process of their own: one PULL socket that listens at many loopback addresses.

`python -m bench.sink COUNT FIRST` prints the port, then answers each line `N` with the rooms and times of the next N
messages. One reader for all keeps the receiving side cheap, so that it does not cap what is measured.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from sidecar.model import DecodeEndpoint

LIMIT_MS = 30_000


def address(number: int) -> str:
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


def main(count: int, first: int) -> None:
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.set(zmq.RCVHWM, 0)
    pull.set(zmq.RCVTIMEO, LIMIT_MS)
    port = pull.bind_to_random_port(f"tcp://{address(first)}")
    for number in range(first + 1, first + count):
        pull.bind(f"tcp://{address(number)}:{port}")
    print(port, flush=True)
    for line in sys.stdin:
        heard: list[tuple[int, float]] = []
        for _ in range(int(line)):
            room = pull.recv()
            heard.append((int(room), time.monotonic()))
            pull.recv()
            pull.recv()
        print(json.dumps(heard), flush=True)


class Sink:
    def __init__(self, process: "subprocess.Popen[str]", addresses: list[DecodeEndpoint]) -> None:
        self.process = process
        self.addresses = addresses
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout

    def expect(self, count: int) -> None:
        self._orders.write(f"{count}\n")
        self._orders.flush()

    def heard(self) -> dict[int, float]:
        """Room and time of each of the messages expected."""
        return dict(json.loads(self._answers.readline()))


@contextmanager
def sink(count: int, *, first: int = 0) -> Iterator[Sink]:
    command = [sys.executable, "-m", "bench.sink", str(count), str(first)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Sink(process, [DecodeEndpoint(address(number), port) for number in range(first, first + count)])
    finally:
        process.kill()
        with process:  # closes its pipes
            process.wait(10.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
