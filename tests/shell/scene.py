"""The service in this process, with rank and decode stand-ins on real sockets. Every wait has a limit."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq
import zmq.asyncio

from sidecar.core.limits import Limits, OutboxLimits
from sidecar.core.notifier import Notifier
from sidecar.model import (
    PROTOCOL,
    Accepted,
    DecodeEndpoint,
    DecodeHandshake,
    Fact,
    Hello,
    Reply,
    RoomConcluded,
    RoomOpened,
    TerminalStatus,
    Upward,
    Welcome,
)
from sidecar.shell.driver import Driver
from sidecar.shell.ingress import IngressServer
from sidecar.shell.push import PushPool
from sidecar.shell.rendezvous import Rendezvous
from sidecar.wire.ingress import encode, reply_reader

LIMIT_S = 10.0
"""For things that take milliseconds: the machine may be busy with engines."""

Wanted = TypeVar("Wanted")


def hello(process: str = "p", *, prefill_rank: int = 0, ttl_s: float = 300.0) -> Hello:
    verdicts = {"abort": "found"}
    return Hello(
        PROTOCOL, process, "engine", "prefill", prefill_rank, 0, 0, 0, os.getpid(), "0", "mooncake", ttl_s, verdicts
    )


class WatchedDriver(Driver):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pumped = asyncio.Event()

    def pump(self) -> None:
        super().pump()
        self.pumped.set()


class Service:
    def __init__(self, path: Path, *, settle_after_s: float) -> None:
        self.path = path
        limits = Limits(outbox=OutboxLimits(settle_after_s=settle_after_s), retry_cap_s=0.5)
        self.notifier = Notifier(epoch="here", limits=limits, jitter=lambda: 0.5, now=time.monotonic())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.retired = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.driver = WatchedDriver(self.notifier, loop=loop, clock=time.monotonic, on_retire=self.retired.set)
        self.push = PushPool(self.driver, context=self._context)
        self.rendezvous = Rendezvous(self.path, group=None)
        self.ingress = IngressServer(self.driver, uid=self.rendezvous.uid, group=None)
        self.driver.attach(push=self.push, streams=self.ingress)
        await self.ingress.start(self.rendezvous)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ingress.stop()
        self.driver.stop()
        self.push.close_all(linger_ms=0)
        self.rendezvous.__exit__()
        self._context.destroy(linger=0)
        await asyncio.sleep(0)

    async def until(self, claim: Any) -> None:
        """Waits until `claim()` holds, looking whenever the core has been fed."""
        async with asyncio.timeout(LIMIT_S):
            while not claim():
                self.driver.pumped.clear()
                await self.driver.pumped.wait()

    async def ended(self, outcome: str, times: int = 1) -> None:
        await self.until(lambda: self.notifier.stats.notices_ended[outcome] >= times)


class Rank:
    """Numbers its facts like a rank does. `hear` gives the next reply of a kind and skips others."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = reply_reader()
        self._heard: list[Reply] = []
        self.seq = 0

    @classmethod
    async def join(cls, path: Path, said: Hello | None = None) -> Self:
        rank = await cls.connect(path)
        rank.say(said or hello())
        try:
            await rank.hear(Welcome)
        except BaseException:
            await rank.leave()
            raise
        return rank

    @classmethod
    async def connect(cls, path: Path) -> Self:
        return cls(*await asyncio.open_unix_connection(path))

    def say(self, message: Upward) -> Upward:
        self._writer.write(encode(message))
        return message

    def say_raw(self, junk: bytes) -> None:
        self._writer.write(junk)

    async def hear(self, kind: type[Wanted]) -> Wanted:
        async with asyncio.timeout(LIMIT_S):
            while True:
                for number, reply in enumerate(self._heard):
                    if isinstance(reply, kind):
                        del self._heard[: number + 1]
                        return reply
                received = await self._reader.read(65_536)
                assert received, "the stream ended"
                self._heard += self._frames.feed(received)

    async def hear_end(self) -> list[Reply]:
        """Everything up to the end of the stream."""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                while received := await self._reader.read(65_536):
                    self._heard += self._frames.feed(received)
        return self._heard

    async def accepted(self) -> None:
        """Everything said so far is held by the sidecar."""
        while (await self.hear(Accepted)).seq < self.seq:
            pass

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def opened(self, room: int, life: int = 1) -> Fact:
        return self._fact(RoomOpened(self.next_seq(), room, life))

    def handshake(self, room: int, endpoint: DecodeEndpoint, life: int = 1, session: str = "s") -> Fact:
        return self._fact(DecodeHandshake(self.next_seq(), room, life, endpoint, session))

    def failed(self, room: int, life: int = 1, at_s: float | None = None, *, http_status: int = 0) -> Fact:
        seq, status, at_s = self.next_seq(), TerminalStatus.FAILED, at_s or time.monotonic()
        return self._fact(RoomConcluded(seq, room, life, status, "gone", True, at_s, http_status=http_status))

    def _fact(self, fact: Fact) -> Fact:
        self.say(fact)
        return fact

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Decode:
    """A PULL socket as sglang's decode binds it."""

    def __init__(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        self._context = zmq.asyncio.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.IPV6, ":" in host)
        address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        if port is None:
            port = self._pull.bind_to_random_port(address)
        else:
            self._pull.bind(f"{address}:{port}")
        self.endpoint = DecodeEndpoint(host, port)

    async def told(self) -> list[bytes]:
        async with asyncio.timeout(LIMIT_S):
            return list(await self._pull.recv_multipart())

    async def is_told_nothing(self, within_s: float) -> bool:
        return not await self._pull.poll(within_s * 1000)

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextlib.contextmanager
def decode(port: int | None = None, host: str = "127.0.0.1") -> Iterator[Decode]:
    opened = Decode(port, host)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.asynccontextmanager
async def ranks(path: Path, *names: str) -> AsyncIterator[list[Rank]]:
    joined = [await Rank.join(path, hello(name, prefill_rank=number)) for number, name in enumerate(names)]
    try:
        yield joined
    finally:
        for rank in joined:
            await rank.leave()


DECODE_PROGRAM = """
import sys, zmq
pull = zmq.Context().socket(zmq.PULL)
pull.bind(f"tcp://127.0.0.1:{sys.argv[1]}")
print("bound", flush=True)
while True:
    print(*[frame.decode() for frame in pull.recv_multipart()], flush=True)
"""


class DecodeProcess:
    """A decode stand-in that can be stopped and killed."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.endpoint = DecodeEndpoint("127.0.0.1", port)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            return (await self.process.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def decode_process(port: int) -> AsyncIterator[DecodeProcess]:
    command = [sys.executable, "-c", DECODE_PROGRAM, str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        started = DecodeProcess(process, port)
        assert await started.line() == "bound"
        yield started
    finally:
        process.kill()
        await process.wait()
