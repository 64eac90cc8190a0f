"""Real engine pairs. Each module has its own, one at a time; it is ended before the next one starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.pair.answers import Answer
from tests.pair.running import Pair
from tests.pair.traffic import Client

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
