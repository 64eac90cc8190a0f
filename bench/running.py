"""What the figures are taken on: a real sidecar process, a rank as the plugin has it, decode endpoints as sockets."""

import os
import signal
import socket as socket_module
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import zmq

from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, DecodeEndpoint, Hello

LIMIT_S = 30.0


@dataclass(frozen=True)
class RunningSidecar:
    process: subprocess.Popen[bytes]
    socket: Path
    ready_s: float

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def cpu_s(process: int) -> float:
    """Of all its threads, to the nanosecond; /proc/PID/stat counts in ticks of 10 ms."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@contextmanager
def running_sidecar(*flags: str, admin: str = "off") -> Iterator[RunningSidecar]:
    with tempfile.TemporaryDirectory(prefix="pds-") as folder:
        socket = Path(folder) / "d" / "s"
        command = [
            sys.executable,
            "-m",
            "sidecar",
            "run",
            "--socket",
            str(socket),
            "--admin",
            admin,
            "--log-level",
            "error",
            *flags,
        ]
        began = time.monotonic()
        process = subprocess.Popen(command)
        try:
            wait_until(lambda: is_served(socket), "the sidecar does not come up")
            yield RunningSidecar(process, socket, time.monotonic() - began)
        finally:
            process.kill()
            process.wait(LIMIT_S)


@contextmanager
def connected_rank(socket: Path) -> Iterator[Rank]:
    rank = make_rank(socket)
    rank.emitter.start()
    try:
        wait_until(lambda: rank.emitter.traffic.connected, "the rank does not connect")
        yield rank
    finally:
        rank.emitter.stop(limit_s=LIMIT_S)


def make_rank(socket: Path) -> Rank:
    hello = Hello(
        PROTOCOL,
        f"bench-{time.monotonic_ns()}",
        "bench",
        "prefill",
        0,
        0,
        0,
        0,
        os.getpid(),
        "-",
        "mooncake",
        300.0,
        {},
    )
    return Rank(hello=hello, socket=str(socket), record_ttl_s=300.0, drain_timeout_s=30.0, on_absent=lambda: "none")


class Endpoints:
    """Decode endpoints, each a PULL socket on loopback, read by polling."""

    def __init__(self, count: int) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self.addresses: list[DecodeEndpoint] = []
        for _ in range(count):
            pull = self._context.socket(zmq.PULL)
            pull.set(zmq.RCVHWM, 0)
            self.addresses.append(DecodeEndpoint("127.0.0.1", pull.bind_to_random_port("tcp://127.0.0.1")))
            self._sockets.append(pull)
            self._poller.register(pull, zmq.POLLIN)

    def receive(self, count: int) -> None:
        """Waits until so many messages have come, on whichever sockets."""
        deadline = time.monotonic() + LIMIT_S
        while count > 0:
            assert time.monotonic() < deadline, f"{count} messages did not come"
            for socket, _ in self._poller.poll(1000):
                count -= self._read_dry(socket)

    def _read_dry(self, socket: "zmq.Socket[bytes]") -> int:
        got = 0
        while True:
            try:
                socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return got
            got += 1

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def decode_endpoints(count: int) -> Iterator[Endpoints]:
    endpoints = Endpoints(count)
    try:
        yield endpoints
    finally:
        endpoints.close()


def is_served(path: Path) -> bool:
    with socket_module.socket(socket_module.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)
