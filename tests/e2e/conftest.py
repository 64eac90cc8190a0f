"""Real engine pairs. Each module has its own, one at a time; it is ended before the next one starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.pair.answers import Answer
from tests.pair.running import Pair
from tests.pair.traffic import Client, Order

ANSWER_LIMIT_S = 60.0
TABLES = ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e" in str(item.path):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
async def client(pair: Pair) -> AsyncIterator[Client]:
    async with Client(pair, limit_s=ANSWER_LIMIT_S) as made:
        yield made


async def until(look: Callable[[], Awaitable[bool]], what: str, *, limit_s: float = ANSWER_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not await look():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def until_in(client: Client, queue: str) -> None:
    """Waits until a request is in that queue of prefill's: waiting, bootstrap or inflight."""

    async def is_there() -> bool:
        return bool((await client.tables("prefill"))[queue])

    await until(is_there, f"no request comes into the {queue} queue")


async def ended_before_decode(client: Client) -> Order:
    """A request that prefill has given up before decode's half was sent."""
    order = Order(text="early " * 80)
    prefill = client.send_prefill(order)
    await until_in(client, "bootstrap")
    await client.abort(order.rid)
    await prefill
    return order


def remains(tables: dict[str, Any], room: int) -> list[str]:
    """Which of P's tables still know the room."""
    return [name for name in TABLES if str(room) in tables[name]]


def is_at_rest(tables: dict[str, Any]) -> bool:
    queues = ("waiting", "bootstrap", "inflight", "pending_chunks")
    return not any(tables[name] for name in queues) and not tables["chunked"] and tables["running"] == 0


def free_kv(tables: dict[str, Any]) -> int:
    return int(tables["kv_available"]) + int(tables["kv_evictable"])


async def assert_nothing_is_left(client: Client, room: int) -> None:
    """Queues, tables, slots and pages of P, as if the request had never been."""

    async def at_rest() -> bool:
        return is_at_rest(await client.tables("prefill"))

    await until(at_rest, "prefill does not come to rest")
    tables = await client.tables("prefill")
    assert remains(tables, room) == []
    assert tables["metadata_free"] == tables["metadata_total"]
    assert free_kv(tables) == tables["kv_total"]
    assert tables["kv_protected"] == 0


def assert_told(prefill: Answer, decode: Answer, *, within_s: float = 1.0) -> None:
    """Decode's client was answered because prefill gave up, not because decode's timeout passed."""
    assert not decode.is_good
    assert decode.answered_at - prefill.answered_at <= within_s
