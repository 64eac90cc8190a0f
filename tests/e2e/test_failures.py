"""Ends that prefill's own limits and failures bring about, on a real pair with a small prefill."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import assert_nothing_is_left, assert_told
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    spec = PairSpec.of(plugin=True, timeout_s=120, prefill={"timeout_s": 4, "max_total_tokens": 10_000})
    with running_pair(spec, "failures") as running:
        yield running


async def test_bootstrap_timeout_then_late_decode(pair: Pair, client: Client) -> None:
    order = Order(text="a" * 500)
    prefill = await client.send_prefill(order)
    assert prefill.status == 500
    await assert_nothing_is_left(pair, client, order.room)

    decode = await client.send_decode(order)

    assert not decode.is_good
    assert decode.took_s < 5.0
    await assert_nothing_is_left(pair, client, order.room)


async def test_input_that_prefill_cannot_hold(pair: Pair, client: Client) -> None:
    """Stock 0.5.18 prefills one token in its place and reports Success: decode answers 200 from the KV of a stub."""
    sent = client.send(Order(text="b" * 12_000))

    prefill, decode = await sent.prefill, await sent.decode

    assert prefill.status == 400
    assert "12000" in prefill.error
    assert_told(prefill, decode)
    assert decode.text == ""
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_transfer_failure(pair: Pair, client: Client) -> None:
    """Comes last: stock puts the decode that a transfer failed to on its black list."""
    with pair.failing_transfers():
        sent = client.send(Order(text="c" * 1_000))
        prefill, decode = await sent.prefill, await sent.decode

    assert prefill.status == 500
    assert "Failed to send kv chunk" in prefill.error
    assert_told(prefill, decode)
    await assert_nothing_is_left(pair, client, sent.order.room)
