"""Streams that are read when their ranks ring: nothing is late that matters, nothing is lost, nothing is left over."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from sglang_hooks.shared_memory import map_memory
from sidecar.model import (
    Accepted,
    Fact,
    Goodbye,
    Hello,
    Refusal,
    Reply,
    RoomConcluded,
    RoomOpened,
    SpaceFreed,
    TerminalStatus,
    Welcome,
)
from sidecar.shell import quiet
from sidecar.shell.doorbell import RECEIVE_BYTES
from sidecar.wire.ingress import encode, reply_reader
from sidecar.wire.memory_pipe import PipeWriter
from tests.shell.scene import LIMIT_S, Service, hello, ranks

SUCCESS = TerminalStatus.SUCCESS
SHARES_MEMORY = False
"""Whether the ranks of a test write to memory."""


class RingingRank:
    """As the plugin's outlet: it writes and rings by itself, on a blocking socket of its own, or to memory if it is
    given some."""

    def __init__(self, path: Path) -> None:
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.settimeout(LIMIT_S)
        self.stream.connect(str(path))
        self.bell: int | None = None
        self.pipe: PipeWriter | None = None
        self._reader = reply_reader()
        self._heard: list[Reply] = []

    async def join(self, said: Hello) -> Welcome:
        self.say(said)
        received, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, self.stream, 65_536, 2)
        self.bell = descriptors[0] if descriptors else None
        for descriptor in descriptors[1:]:
            memory = map_memory(descriptor)
            assert memory is not None
            self.pipe = PipeWriter(memoryview(memory))
            os.close(descriptor)
        self._heard = list(self._reader.feed(received))
        welcome = self._heard.pop(0)
        assert isinstance(welcome, Welcome)
        return welcome

    def say(self, *messages: Hello | Fact) -> None:
        self.write(b"".join(encode(message) for message in messages))

    def write(self, data: bytes) -> None:
        if self.pipe is None:
            self.stream.sendall(data)
        else:
            assert self.pipe.write(data) == len(data)

    def ring(self) -> None:
        assert self.bell is not None
        os.eventfd_write(self.bell, 1)

    async def hear(self) -> Reply:
        while not self._heard:
            received = await asyncio.to_thread(self.stream.recv, 65_536)
            assert received, "the stream ended"
            self._heard += self._reader.feed(received)
        return self._heard.pop(0)

    def close(self) -> None:
        self.stream.close()
        if self.bell is not None:
            os.close(self.bell)
            self.bell = None


@contextlib.asynccontextmanager
async def ringing(service: Service, process: str = "p", *, prefill_rank: int = 0) -> AsyncIterator[RingingRank]:
    rank = RingingRank(service.path)
    try:
        said = structs.replace(hello(process, prefill_rank=prefill_rank), rings=True, shares_memory=SHARES_MEMORY)
        welcome = await rank.join(said)
        assert welcome.doorbell
        assert welcome.shares_memory == SHARES_MEMORY == (rank.pipe is not None)
        yield rank
    finally:
        rank.close()


def write_and_ring(rank: RingingRank, *parts: list[RoomOpened]) -> None:
    for part in parts:
        rank.say(*part)
        rank.ring()


def descriptors_in_use() -> int:
    """Without those of processes: this one is alive, and its death is watched for."""
    paths = [Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")]
    return sum(path.is_symlink() and os.readlink(path) != "anon_inode:[pidfd]" for path in paths)


def none_left(*_: object) -> int:
    raise OSError(24, "Too many open files")


def opened(seq: int, room: int) -> RoomOpened:
    return RoomOpened(seq, room, 1)


def succeeded(seq: int, room: int) -> RoomConcluded:
    return RoomConcluded(seq, room, 1, SUCCESS, "", True, time.monotonic())


@pytest.fixture(autouse=True, params=["stream", "memory"])
def way(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(f"{__name__}.SHARES_MEMORY", request.param == "memory")


@pytest.fixture(autouse=True)
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "LOOK_EVERY_S", 1_000.0)


async def test_what_is_written_is_read_when_it_is_rung_for(service: Service) -> None:
    async with ringing(service) as rank, ranks(service.path, "q") as [other]:
        rank.say(opened(1, 1))
        other.opened(2)
        await other.accepted()  # this loop has had its turn, and more than one
        assert service.notifier.stats.facts["RoomOpened"] == 1
        rank.ring()

        assert await rank.hear() == Accepted(1)
        assert service.notifier.stats.facts["RoomOpened"] == 2


async def test_each_ring_is_heard(service: Service) -> None:
    """The bell is silenced after the first look: what is rung for in between must not be left lying."""
    async with ringing(service) as rank:
        for seq in range(1, 201):
            rank.say(opened(seq, seq))
            rank.ring()
            await asyncio.sleep(0)
        await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 200)


async def test_between_the_look_and_the_silence_another_ring_counts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ringing(service) as rank:
        (stream,) = service.ingress._streams.values()  # noqa: SLF001 - between its two steps
        bell = stream._doorbell  # noqa: SLF001
        assert bell is not None
        silence = bell.silence

        def be_overtaken() -> None:
            monkeypatch.undo()
            rank.say(opened(2, 2))
            rank.ring()
            silence()

        monkeypatch.setattr(bell, "silence", be_overtaken)
        rank.say(opened(1, 1))
        rank.ring()
        await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 2)


async def test_more_than_one_read_takes_is_read_to_its_end(service: Service) -> None:
    async with ringing(service) as rank:
        facts = [opened(seq, seq) for seq in range(1, 6_001)]
        assert sum(len(encode(fact)) for fact in facts) > RECEIVE_BYTES
        await asyncio.to_thread(write_and_ring, rank, facts[:4_000], facts[4_000:])
        await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 6_000)


async def test_now_and_then_it_is_looked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "LOOK_EVERY_S", 0.001)
    async with ringing(service) as rank:
        rank.say(opened(1, 1))
        await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 1)
        rank.say(opened(2, 2))
        await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 2)


async def test_whoever_asks_gets_what_has_been_written(service: Service) -> None:
    async with ringing(service) as rank:
        rank.say(opened(1, 1))
        service.ingress.catch_up()

        assert service.notifier.rooms.open_rooms == 1


async def test_a_stream_that_ends_is_read_to_its_end_first(service: Service) -> None:
    """A D is never told of a request whose Success its prefill had written before it died."""
    async with ringing(service) as rank:
        rank.say(opened(1, 1), succeeded(2, 1))
        rank.close()
        await service.until(lambda: service.notifier.stats.ranks_left == 1)

        assert service.notifier.stats.facts["RoomConcluded"] == 1
        assert service.notifier.stats.ranks_lost == 0


async def test_a_stream_that_breaks_under_a_reply_is_read_to_its_end_first(service: Service) -> None:
    """The rank has died with a Success unread, and the first to notice is a reply to it."""
    async with ringing(service) as rank:
        rank.say(opened(1, 1), succeeded(2, 1), Goodbye(3))
        rank.close()
        (number,) = service.ingress._streams  # noqa: SLF001 - the core would say it
        for _ in range(3):
            service.ingress.write(number, [Accepted(0)])
        await service.until(lambda: service.notifier.stats.ranks_left == 1)

        assert service.notifier.stats.facts["RoomConcluded"] == 1
        assert service.notifier.stats.facts["Goodbye"] == 1


async def test_what_siblings_have_said_is_known_when_a_process_dies(service: Service) -> None:
    async with ringing(service, "p") as first, ringing(service, "q", prefill_rank=1) as second:
        first.say(opened(1, 1))
        second.say(opened(1, 1))
        service.ingress.catch_up()
        second.say(succeeded(2, 1))
        first.close()
        await service.until(lambda: service.notifier.stats.ranks_left == 1)
        service.ingress._died(1)  # noqa: SLF001 - as its watch reports it

        assert service.notifier.stats.facts["RoomConcluded"] == 1


async def test_junk_is_refused_and_nothing_after_it_is_heard(service: Service) -> None:
    async with ringing(service) as rank:
        rank.write(b"\0\0\0\1\xc1" + encode(opened(1, 1)))
        rank.ring()

        assert isinstance(await rank.hear(), Refusal)
        await service.until(lambda: len(service.ingress) == 0)
        assert service.ingress.junk == {"malformed": 1}
        assert service.notifier.stats.facts["RoomOpened"] == 0


async def test_one_that_we_end_is_not_listened_to_any_more(service: Service) -> None:
    """Its end would be reported again and again while what it has not read keeps its transport."""
    async with ringing(service):
        service.ingress.end(1)

        assert len(service.ingress.quiet) == 0
        await service.until(lambda: len(service.ingress) == 0)


async def test_without_a_descriptor_for_it_there_is_no_doorbell(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "eventfd", none_left)
    rank = RingingRank(service.path)
    welcome = await rank.join(structs.replace(hello(), rings=True))
    rank.say(opened(1, 1))

    assert not welcome.doorbell
    assert rank.bell is None
    assert await rank.hear() == Accepted(1)
    rank.close()


async def test_nothing_is_left_over(service: Service) -> None:
    async with ringing(service):
        pass
    await service.until(lambda: len(service.ingress) == 0)
    before = descriptors_in_use()
    for _ in range(3):
        async with ringing(service):
            pass
        await service.until(lambda: len(service.ingress) == 0)

    assert descriptors_in_use() == before


# -- memory


async def sharing(service: Service) -> RingingRank:
    rank = RingingRank(service.path)
    assert (await rank.join(structs.replace(hello(), rings=True, shares_memory=True))).shares_memory
    return rank


async def test_who_has_filled_the_memory_hears_of_space(service: Service) -> None:
    rank = await sharing(service)
    assert rank.pipe is not None
    facts = b"".join(encode(opened(seq, seq)) for seq in range(1, 12_001))
    taken = rank.pipe.write(facts)
    assert taken < len(facts)
    rank.ring()

    assert await rank.hear() == SpaceFreed()
    await service.until(lambda: service.notifier.stats.facts["RoomOpened"] > 6_000)
    assert rank.pipe.write(facts[taken:]) == len(facts) - taken
    rank.ring()
    await service.until(lambda: service.notifier.stats.facts["RoomOpened"] == 12_000)
    rank.close()


async def test_what_is_written_between_the_last_look_and_the_end_is_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is empty; then its rank writes and dies; then the stream says that it has ended."""
    rank = await sharing(service)
    (stream,) = service.ingress._streams.values()  # noqa: SLF001 - between its two steps
    bell = stream._doorbell  # noqa: SLF001
    assert bell is not None
    receive = bell._receive  # noqa: SLF001

    def be_overtaken() -> bytes | None:
        monkeypatch.undo()
        rank.say(opened(1, 1), succeeded(2, 1))
        rank.close()
        return receive()

    monkeypatch.setattr(bell, "_receive", be_overtaken)
    rank.ring()
    await service.until(lambda: service.notifier.stats.ranks_left == 1)

    assert service.notifier.stats.facts["RoomConcluded"] == 1


async def test_nonsense_in_the_memory_is_refused(service: Service) -> None:
    rank = await sharing(service)
    assert rank.pipe is not None
    rank.pipe._counters[0] = 2**40  # noqa: SLF001 - more than there is place for
    rank.ring()

    assert isinstance(await rank.hear(), Refusal)
    await service.until(lambda: len(service.ingress) == 0)
    assert service.ingress.junk == {"malformed": 1}
    rank.close()


async def test_nonsense_in_the_memory_of_a_dead_rank_is_not_heard(service: Service) -> None:
    rank = await sharing(service)
    assert rank.pipe is not None
    rank.pipe._counters[0] = 2**40  # noqa: SLF001
    rank.close()

    await service.until(lambda: service.notifier.stats.ranks_left == 1)
    assert service.ingress.junk == {"malformed": 1}


async def test_without_memory_to_be_had_the_stream_is_read_when_it_is_rung_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", none_left)
    rank = RingingRank(service.path)
    welcome = await rank.join(structs.replace(hello(), rings=True, shares_memory=True))
    rank.say(opened(1, 1))
    rank.ring()

    assert welcome.doorbell
    assert not welcome.shares_memory
    assert await rank.hear() == Accepted(1)
    rank.close()


async def test_memory_without_a_doorbell_is_not_given(service: Service) -> None:
    """It would be read now and then only."""
    rank = RingingRank(service.path)
    welcome = await rank.join(structs.replace(hello(), shares_memory=True))

    assert not welcome.shares_memory
    assert rank.pipe is None
    rank.close()
