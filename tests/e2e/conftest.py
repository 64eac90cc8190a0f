"""Real engine pairs. Each module has its own, one at a time; it is ended before the next one starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.pair.answers import Answer
from tests.pair.rest import comes_to_rest, leftovers
from tests.pair.running import Pair
from tests.pair.traffic import Client, Order

ANSWER_LIMIT_S = 60.0


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


async def assert_nothing_is_left(pair: Pair, client: Client, room: int) -> None:
    """Queues, tables, slots and pages of every prefill rank, as if the request had never been."""
    for tables in await comes_to_rest(pair, client, "prefill", limit_s=ANSWER_LIMIT_S):
        assert leftovers(tables, [room]) == []


def assert_told(prefill: Answer, decode: Answer, *, within_s: float = 1.0) -> None:
    """Decode's client was answered because prefill gave up, not because decode's timeout passed."""
    assert not decode.is_good
    assert decode.answered_at - prefill.answered_at <= within_s
