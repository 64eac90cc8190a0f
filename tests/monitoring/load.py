"""Something of everything that the dashboard shows, played at a sidecar without an engine.

`python -m tests.monitoring.load SOCKET` goes on until it is ended: two prefill ranks and a tokenizer process, decode
endpoints of which some answer, one comes and goes, some refuse and one drops packets, junk at the socket, and now and
then a rank that is killed.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import structs

from bench.endpoints import full_listener, refused_port
from sidecar.model import (
    TOKENIZER,
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeRegistered,
    RoomConcluded,
    RoomRefused,
    TerminalStatus,
)
from tests.pair.paths import REPO
from tests.pair.ports import free_port
from tests.shell.scene import Decode, Rank, hello

PACE_S = 0.1
JUNK_EVERY_S = 1.0
AWAY_S, BACK_S = 2.0, 8.0
DEATH_EVERY_S = 15.0
TTL_S = 8.0
"""Instead of 300 s: so what cannot be delivered expires while one looks. Longer than a hand-off takes to settle."""

SESSION_TURNS = 60
JUNK = b"\xff" * 64
OPEN = b"open\n"
"""What the rank that is to be killed says when it has open rooms."""


class DrainedRank(Rank):
    async def drain(self) -> None:
        while await self._reader.read(65_536):
            pass


class DrainedDecode(Decode):
    async def drain(self) -> None:
        while True:
            await self._pull.recv_multipart()


class Rooms:
    """One rank's turns: each is a room with one endpoint, and ends in one of ten ways."""

    def __init__(self, rank: Rank, endpoints: "Endpoints") -> None:
        self._rank = rank
        self._endpoints = endpoints
        self._turn = 0

    def greet(self) -> None:
        self._register(self._endpoints.registered, "s")
        self._register(self._endpoints.with_half, "s", "0.5.23")

    def turn(self) -> None:
        room, life = self._turn, 2 * self._turn + 1
        endpoint = self._endpoints.all[room % len(self._endpoints.all)]
        way = room % 10
        self._turn += 1
        first = self._rank.opened(room, life)
        if way != 5:
            self._rank.handshake(room, endpoint, life, self._session(endpoint))
        self._end(room, life, TerminalStatus.SUCCESS if way == 6 else TerminalStatus.FAILED, drained=way != 7)
        self._afterwards(room, life, way, endpoint)
        if room % SESSION_TURNS == 0:
            self._rank.say(first)  # replayed
            self._rank.opened(-1, life)  # implausible
            self._register(self._endpoints.restarting, self._session(self._endpoints.restarting))

    def _end(self, room: int, life: int, status: TerminalStatus, *, drained: bool = True) -> None:
        seq, now = self._rank.next_seq(), time.monotonic()
        self._rank.say(RoomConcluded(seq, room, life, status, "Aborted", drained, now))

    def _afterwards(self, room: int, life: int, way: int, endpoint: DecodeEndpoint) -> None:
        seq = self._rank.next_seq
        if way == 5:  # decode comes late
            self._rank.handshake(room, endpoint, life, self._session(endpoint))
        elif way == 8:
            self._rank.say(DecodeAborted(seq(), room, life, endpoint))
        elif way == 9:  # the room is used again, and decode's word for the old life comes after that for the new one
            self._rank.opened(room, life + 1)
            self._rank.handshake(room, endpoint, life + 1, self._session(endpoint))
            self._rank.handshake(room, endpoint, life, self._session(endpoint))
            self._end(room, life + 1, TerminalStatus.SUCCESS)
        elif endpoint == self._endpoints.with_half:
            self._rank.say(DecodeAcknowledged(seq(), room, life, endpoint))

    def _session(self, endpoint: DecodeEndpoint) -> str:
        return f"s{self._turn // SESSION_TURNS}" if endpoint == self._endpoints.restarting else "s"

    def _register(self, endpoint: DecodeEndpoint, session: str, half: str = "") -> None:
        self._rank.say(DecodeRegistered(self._rank.next_seq(), endpoint, session, 20, half))


class Endpoints:
    """`registered` takes a cause, `with_half` a status too; `restarting` refuses, and registers anew now and then."""

    def __init__(self, held: ExitStack) -> None:
        self.alive = [DrainedDecode() for _ in range(4)]
        for decode in self.alive:
            held.callback(decode.close)
        self.blinking = DecodeEndpoint("127.0.0.1", free_port())
        self.registered, self.with_half = self.alive[0].endpoint, self.alive[1].endpoint
        self.restarting = refused_port()
        answering = [decode.endpoint for decode in self.alive]
        self.all = [*answering, self.blinking, self.restarting, refused_port(), refused_port(), full_listener(held)]


async def play(socket: Path) -> None:
    with ExitStack() as held:
        endpoints = Endpoints(held)
        async with asyncio.TaskGroup() as tasks:
            for decode in endpoints.alive:
                tasks.create_task(decode.drain())
            tasks.create_task(_blink(endpoints.blinking.port))
            tasks.create_task(_refuse(socket))
            tasks.create_task(_junk(socket))
            tasks.create_task(_deaths(socket))
            for number in range(2):
                tasks.create_task(_rank(socket, number, endpoints))


async def _rank(socket: Path, number: int, endpoints: Endpoints) -> None:
    said = structs.replace(
        hello(f"rank-{number}-{os.getpid()}", prefill_rank=number, ttl_s=TTL_S),
        tp_rank=number,
        hooks={f"point_{point}": "found" if number == 0 or point else "it is missing" for point in range(22)},
    )
    rank = await DrainedRank.join(socket, said)
    reading = asyncio.create_task(rank.drain())
    rooms = Rooms(rank, endpoints)
    rooms.greet()
    while not reading.done():
        rooms.turn()
        await asyncio.sleep(PACE_S)
    raise ConnectionError("the sidecar ended the stream of a rank")


async def _refuse(socket: Path) -> None:
    said = structs.replace(hello(f"main-{os.getpid()}"), role=TOKENIZER)
    tokenizer = await DrainedRank.join(socket, said)
    reading = asyncio.create_task(tokenizer.drain())
    while not reading.done():
        seq = tokenizer.next_seq()
        tokenizer.say(RoomRefused(seq, 1_000_000 + seq, "too long", 400, time.monotonic()))
        await asyncio.sleep(JUNK_EVERY_S)


async def _blink(port: int) -> None:
    while True:
        decode = DrainedDecode(port)
        reading = asyncio.create_task(decode.drain())
        await asyncio.sleep(BACK_S)
        reading.cancel()
        decode.close()
        await asyncio.sleep(AWAY_S)


async def _junk(socket: Path) -> None:
    """By turns bytes that are no frame, and a hello of another version."""
    while True:
        for message in (JUNK, None):
            stream = await DrainedRank.connect(socket)
            if message is None:
                stream.say(structs.replace(hello("stranger"), protocol=99))
            else:
                stream.say_raw(message)
            with contextlib.suppress(TimeoutError):  # the machine may be busy with engines
                await stream.hear_end()
            await stream.leave()
            await asyncio.sleep(JUNK_EVERY_S)


async def _deaths(socket: Path) -> None:
    while True:
        await asyncio.sleep(DEATH_EVERY_S)
        command = [sys.executable, "-m", "tests.monitoring.load", str(socket), "--doomed"]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == OPEN, "the rank to be killed did not get as far as that"
        process.kill()
        await process.wait()


async def doomed(socket: Path) -> None:
    """A rank with three rooms open, until it is killed."""
    said = structs.replace(hello(f"doomed-{os.getpid()}", prefill_rank=2, ttl_s=TTL_S), engine="other", tp_rank=2)
    with ExitStack() as held:
        endpoint = full_listener(held)
        rank = await DrainedRank.join(socket, said)
        for room in range(3):
            rank.opened(room, room + 1)
            rank.handshake(room, endpoint, room + 1)
        await rank.accepted()
        sys.stdout.buffer.write(OPEN)
        sys.stdout.flush()
        await rank.drain()


@contextmanager
def load(socket: Path) -> Iterator[None]:
    """Played meanwhile, by another process."""
    process = subprocess.Popen([sys.executable, "-m", "tests.monitoring.load", str(socket)], cwd=REPO)
    try:
        yield
        assert process.poll() is None, "the load ended by itself"
    finally:
        process.kill()
        process.wait(30.0)


if __name__ == "__main__":
    asyncio.run((doomed if "--doomed" in sys.argv else play)(Path(sys.argv[1])))
