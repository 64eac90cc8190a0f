"""What the truth table is measured with: the service with the settings of production, its metrics as a scrape shows
them, every report of libzmq with its time, and a way to drop packets that needs no privilege.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import zmq
from prometheus_client import CollectorRegistry

from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.model import DecodeEndpoint
from sidecar.shell.push import PushPool
from sidecar.shell.story import room_document
from tests.shell.admin import collector_of
from tests.shell.scene import LIMIT_S, DecodeProcess, Rank, Service, decode_process, hello

SLACK_S = 2.5
SETTLE_AFTER_S = 5.0
"""Beyond the stated time, for a machine that is busy with engines."""

_CLONE_NEWNET = 0x40000000
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # SO_ATTACH_FILTER and SO_DETACH_FILTER of Linux
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0 bytes of every packet


class WatchedPush(PushPool):
    """Keeps what it heard, with the time, and wakes whoever waits."""

    def __init__(self, driver: Any, *, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        super().__init__(driver, context=context)
        self.reports: list[tuple[float, DecodeEndpoint, zmq.Event]] = []
        self._pumped = driver.pumped

    def heard(self, endpoint: DecodeEndpoint, event: int) -> None:
        super().heard(endpoint, event)
        self.reports.append((time.monotonic(), endpoint, zmq.Event(event)))
        self._pumped.set()


class Truth(Service):
    """Retries, settling and bounds as in production (the core's defaults)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, settle_after_s=SETTLE_AFTER_S)
        self.notifier = Notifier(epoch="here", limits=Limits(), jitter=lambda: 0.5, now=time.monotonic())

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.push: WatchedPush = WatchedPush(self.driver, context=self._context)
        self.driver.attach(push=self.push, streams=self.ingress)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector_of(self))
        return self

    def metric(self, name: str, **labels: str) -> float:
        """As `/metrics` says it; 0 for a label that has not occurred."""
        return self._registry.get_sample_value(f"pd_sidecar_{name}", labels) or 0.0

    def why_owed(self, room: int) -> list[str]:
        [life] = room_document(self.notifier, room, now=time.monotonic(), wall_s=time.time())["lives"]
        return [str(endpoint["in_words"]).partition("; ")[2].partition(" (")[0] for endpoint in life["endpoints"]]

    async def report(self, endpoint: DecodeEndpoint, *events: zmq.Event, since: float) -> float:
        """Seconds from `since` until libzmq reported one of the events."""

        def times() -> list[float]:
            return [at - since for at, of, event in self.push.reports if of == endpoint and event in events]

        await self.until(times)
        print(f"known after {times()[0]:.3f} s by {[event.name for event in events]}")
        return times()[0]


@contextlib.asynccontextmanager
async def joined(truth: Truth, *, ttl_s: float = 300.0) -> AsyncIterator[Rank]:
    rank = await Rank.join(truth.path, hello(ttl_s=ttl_s))
    try:
        yield rank
    finally:
        await rank.leave()


@contextlib.asynccontextmanager
async def mortal(port: int) -> AsyncIterator[DecodeProcess]:
    """A decode stand-in that the test may have killed by the end."""
    with contextlib.suppress(ProcessLookupError):
        async with decode_process(port) as started:
            yield started


async def owe(rank: Rank, endpoint: DecodeEndpoint, room: int = 1) -> float:
    """The room's end is known to the sidecar; answers since when."""
    rank.handshake(room, endpoint)
    rank.failed(room)
    await rank.accepted()
    return time.monotonic()


def no_namespaces() -> str | None:
    """Why this process can make none."""
    if os.geteuid() != 0:
        return "a network namespace takes root"
    return None if shutil.which("ip") else "a network namespace takes iproute2 (ip)"


def in_a_namespace(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it on a thread that has left this process's network for an empty one; it ends with the thread."""

    def body() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            pytest.skip(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        _ip("link set lo up")
        asyncio.run(scene())

    with concurrent.futures.ThreadPoolExecutor(1) as alone:
        alone.submit(body).result()


def black_hole() -> DecodeEndpoint:
    """For a thread in a namespace of its own: a network whose only other host does not take what is sent to it."""
    _ip("link add near type veth peer name far")
    _ip("address add 10.99.0.1/24 dev near")
    _ip("link set near up")
    _ip("link set far up")
    _ip("neighbour add 10.99.0.2 lladdr 02:00:00:00:00:02 dev near nud permanent")
    return DecodeEndpoint("10.99.0.2", 7001)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, timeout=LIMIT_S)


def drop_packets(receiving: socket.socket) -> None:
    """Whatever arrives there is thrown away before TCP sees it: no answer, no acknowledgement, no reset."""
    program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
    receiving.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def take_packets(receiving: socket.socket) -> None:
    receiving.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


@contextlib.contextmanager
def sockets_at(port: int) -> Iterator[list[socket.socket]]:
    """This process's sockets whose own port it is, the listening and the accepted: libzmq does not hand them out."""
    found: list[socket.socket] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(int(name)))
            if one.family == socket.AF_INET and one.getsockname()[1] == port:
                found.append(one)
            else:
                one.close()
    try:
        yield found
    finally:
        for one in found:
            one.close()
