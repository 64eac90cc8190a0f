"""Requests that prefill refuses before they have a sender, on a real pair: by its tokenizer process (longer than its
context), and by its scheduler (more tokens than its KV pool holds).
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import assert_nothing_is_left, assert_told, ended_before_decode
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order, new_rid

POOL, CONTEXT = 10_000, 20_000
OVER_CAPACITY, TOO_LONG = 12_000, 25_000
HEAD_START_S = 0.5
EARLY_S = 3.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    limits = {"max_total_tokens": POOL, "context_length": CONTEXT}
    with running_pair(PairSpec.of(plugin=True, timeout_s=120, prefill=limits), "refusals") as running:
        yield running


@pytest.mark.parametrize("tokens", [TOO_LONG, OVER_CAPACITY])
async def test_decode_is_told_at_once_and_generates_nothing(pair: Pair, client: Client, tokens: int) -> None:
    sent = client.send(Order(text="x" * tokens))

    prefill, decode = await sent.prefill, await sent.decode

    assert prefill.status == 400
    assert_told(prefill, decode)
    assert decode.text == ""
    await assert_nothing_is_left(pair, client, sent.order.room)


@pytest.mark.parametrize("tokens", [TOO_LONG, OVER_CAPACITY])
async def test_decode_that_comes_after_the_refusal_is_told(pair: Pair, client: Client, tokens: int) -> None:
    order = Order(text="x" * tokens)
    refused = client.send_prefill(order)
    await asyncio.wait([refused], timeout=HEAD_START_S)  # a stub has a sender, and waits for decode

    decode = await client.send_decode(order)

    assert (await refused).status == 400
    assert not decode.is_good
    assert decode.took_s < 1.0
    await assert_nothing_is_left(pair, client, order.room)


async def test_a_room_that_was_refused_serves_the_next_request(pair: Pair, client: Client) -> None:
    refused = Order(text="x" * TOO_LONG)
    first = client.send(refused)
    assert_told(await first.prefill, await first.decode)

    for _ in range(3):
        again = client.send(Order(text="y" * 200, room=refused.room, rid=new_rid()))
        assert (await again.prefill).is_good
        assert (await again.decode).is_good


async def test_a_room_that_was_aborted_serves_the_next_request(pair: Pair, client: Client) -> None:
    ended = await ended_before_decode(client)

    again = client.send(Order(text="y" * 200, room=ended.room, rid=new_rid()))

    assert (await again.prefill).is_good
    assert (await again.decode).is_good


async def test_unknown_is_not_ended(pair: Pair, client: Client) -> None:
    """Decode comes long before prefill's request, and is not answered as if it came late."""
    order = Order(text="z" * 200)
    decode = client.send_decode(order)
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=order.room)

    done, _ = await asyncio.wait([decode], timeout=EARLY_S)
    assert not done

    assert (await client.send_prefill(order)).is_good
    assert (await decode).is_good
