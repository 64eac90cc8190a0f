"""Slow and hostile HTTP clients: facts are served in time, sockets are bounded and closed, a scrape gets through."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sidecar.shell import admin as admin_module
from sidecar.shell import visitors as visitors_module
from tests.shell.admin import admin_of
from tests.shell.scene import LIMIT_S, Service, decode, ranks
from tests.shell.test_admin import get

HOSTILE = 200
LIMIT = 32


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def is_cut(self) -> bool:
        """Waits for it."""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65_536):
                    pass
            return True


@contextlib.asynccontextmanager
async def hostile(port: int, count: int) -> AsyncIterator[list[Client]]:
    clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.writer.close()


async def slowest_notice_s(service: Service, *, rooms: int) -> float:
    """From the fact to decode, one after the other."""
    slowest = 0.0
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            for room in range(rooms):
                rank.handshake(room, waiting.endpoint, life=room + 1)
                begin = time.monotonic()
                rank.failed(room, room + 1)
                await waiting.told()
                slowest = max(slowest, time.monotonic() - begin)
    return slowest


async def test_clients_that_say_nothing_cost_nothing(patient: Service) -> None:
    async with admin_of(patient, visitor_limit=LIMIT) as (admin, port), hostile(port, HOSTILE) as clients:
        assert await slowest_notice_s(patient, rooms=50) < 0.5
        assert len(admin.visitors) <= LIMIT
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200
        assert all([await client.is_cut() for client in clients[: HOSTILE - LIMIT]])
        assert admin.visitors.sent_away["limit"] >= HOSTILE - LIMIT


async def test_clients_that_drip_cost_nothing(patient: Service) -> None:
    """One byte of a request at a time."""
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 200

    async def drip(client: Client) -> None:
        with contextlib.suppress(ConnectionError):
            for byte in request:
                client.writer.write(bytes([byte]))
                await client.writer.drain()
                await asyncio.sleep(0.02)

    async with admin_of(patient, visitor_limit=LIMIT) as (admin, port), hostile(port, HOSTILE) as clients:
        dripping = [asyncio.ensure_future(drip(client)) for client in clients]
        assert await slowest_notice_s(patient, rooms=50) < 0.5
        assert (await get(f"http://127.0.0.1:{port}/metrics"))[0] == 200
        assert len(admin.visitors) <= LIMIT
        for task in dripping:
            task.cancel()
        await asyncio.gather(*dripping, return_exceptions=True)


async def test_nobody_stays_longer_than_a_visit(patient: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors_module, "VISIT_LIMIT_S", 0.05)
    async with admin_of(patient) as (admin, port), hostile(port, 5) as clients:
        clients[0].writer.write(b"GET /healthz HTTP/1.1\r\nHost:")

        assert all([await client.is_cut() for client in clients])
        assert admin.visitors.sent_away == {"time": 5}
        assert len(admin.visitors) == 0


async def test_who_never_reads_the_answer_is_cut(patient: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors_module, "VISIT_LIMIT_S", 0.3)
    async with admin_of(patient) as (admin, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        client = Client(reader, writer)

        assert await client.is_cut()
        assert len(admin.visitors) == 0
        writer.close()


async def test_an_answer_ends_the_connection(patient: Service) -> None:
    async with admin_of(patient) as (admin, port), hostile(port, 1) as [client]:
        client.writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            answer = await client.reader.read()

        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"ok\n")
        assert admin.visitors.sent_away == {}


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
    ],
    ids=["tls", "long_target", "many_headers", "huge_body"],
)
async def test_junk_ends_its_own_connection(patient: Service, junk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors_module, "VISIT_LIMIT_S", 1.0)
    async with admin_of(patient) as (_, port), hostile(port, 1) as [client]:
        client.writer.write(junk)

        assert await client.is_cut()
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200


async def test_a_storm_of_scrapes_is_answered_from_one(patient: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes work is not done again for each of them."""
    made: list[float] = []

    def counting(registry: CollectorRegistry) -> bytes:
        made.append(time.monotonic())
        return generate_latest(registry)

    monkeypatch.setattr(admin_module, "generate_latest", counting)
    async with admin_of(patient) as (_, port):
        answers = await asyncio.gather(*[get(f"http://127.0.0.1:{port}/metrics") for _ in range(60)])

    assert {status for status, _ in answers} == {200}
    assert all(later - earlier >= admin_module.FRESH_S for earlier, later in itertools.pairwise(made))
