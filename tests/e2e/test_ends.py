"""Every end of a request on prefill, on real pairs with the plugin: with overlap scheduling and without, with several
ranks, with stages, and with more ranks on one side than on the other.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import assert_nothing_is_left, assert_told, ended_before_decode, until, until_in
from tests.pair.rest import free_kv, send_prefill_first, tables_of_ranks
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order
from tests.stress.plan import plan
from tests.stress.playing import Player, expected_outputs

STRESS_SEED, STRESS_ROUNDS = 7, 3
DEATH_LIMIT_S = 30.0
TOLD_OF_DEATH_S = 1.5
"""The claim is 0.5 s on a quiet machine; stock decode needs its heartbeat, 6 s."""

TWO_AND_TWO = {"prefill": {"tp": 2}, "decode": {"tp": 2}}
SMALL_CHUNKS = {"args": ("--chunked-prefill-size", "256")}
"""Between sides of different TP each token is a block of its own, and Mooncake's TCP refuses some thousands at once.
Small chunks take long, so requests are shorter there."""

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "no-overlap": {"overlap": False},
    "tp2": TWO_AND_TWO,
    "pp2": {"prefill": {"pp": 2}},
}
MORE_TOPOLOGIES: dict[str, dict[str, Any]] = {
    "overlap": {},
    "tp2-no-overlap": TWO_AND_TWO | {"overlap": False},
    "tp2-pp2": {"prefill": {"tp": 2, "pp": 2}, "decode": {"tp": 2}},
    "tp2-to-tp1": {"prefill": {"tp": 2} | SMALL_CHUNKS},
    "tp1-to-tp2": {"prefill": SMALL_CHUNKS, "decode": {"tp": 2}},
    "0.5.19": {"sglang": "0.5.19"},
    "0.5.20": {"sglang": "0.5.20"},
    "0.5.21": {"sglang": "0.5.21"},
    "0.5.22": {"sglang": "0.5.22"},
    "0.5.23": {"sglang": "0.5.23"},
    "nixl": {"backend": "nixl"},
    "nixl-0.5.20": {"backend": "nixl", "sglang": "0.5.20"},
    "nixl-0.5.23": {"backend": "nixl", "sglang": "0.5.23"},
}
"""Only with PD_SIDECAR_LONG=1: each takes some minutes."""

if os.environ.get("PD_SIDECAR_LONG"):
    TOPOLOGIES |= MORE_TOPOLOGIES


@pytest.fixture(scope="module", params=TOPOLOGIES.values(), ids=TOPOLOGIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with running_pair(PairSpec.of(plugin=True, timeout_s=120, **request.param), "ends") as running:
        yield running


def is_uneven(pair: Pair) -> bool:
    return pair.spec.prefill.tp != pair.spec.decode.tp


def text(pair: Pair, letter: str, tokens: int) -> str:
    return letter * (tokens // 4 if is_uneven(pair) else tokens)


async def test_normal_traffic_is_served(pair: Pair, client: Client) -> None:
    sent = [client.send(Order(text=f"{n} " * 200)) for n in range(4)]

    for one in sent:
        assert (await one.prefill).is_good
        assert (await one.decode).is_good


async def test_waiting(pair: Pair, client: Client) -> None:
    busy = client.send(Order(text=text(pair, "a", 12_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=busy.order.room)
    waiting = client.send(Order(text=text(pair, "b", 4_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=waiting.order.room)

    await client.abort(waiting.order.rid)

    assert_told(await waiting.prefill, await waiting.decode)
    assert (await busy.decode).is_good
    await assert_nothing_is_left(pair, client, waiting.order.room)


async def test_bootstrap_queue_and_the_decode_that_comes_late(pair: Pair, client: Client) -> None:
    order = await ended_before_decode(client)
    await assert_nothing_is_left(pair, client, order.room)

    decode = await client.send_decode(order)

    assert not decode.is_good
    assert decode.took_s < 5.0
    await assert_nothing_is_left(pair, client, order.room)


async def test_room_is_used_again_after_a_late_decode(pair: Pair, client: Client) -> None:
    order = await ended_before_decode(client)
    late = client.send_decode(order)
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=order.room)
    assert not (await late).is_good

    again = await send_prefill_first(client, Order(text=text(pair, "e", 500), room=order.room))

    assert (await again.prefill).is_good
    assert (await again.decode).is_good
    await assert_nothing_is_left(pair, client, order.room)


async def test_between_the_chunks_with_a_transfer_held_open(pair: Pair, client: Client) -> None:
    """Prefill's pages and slot stay reserved and decode hears nothing while a chunk is being written."""
    with pair.held_transfers():
        sent = client.send(Order(text=text(pair, "f", 30_000)))
        began = len(pair.events.all("write_began", role="prefill"))
        await pair.events.wait_for("write_began", role="prefill", count=began + 1)
        await client.abort(sent.order.rid)

        async def parked() -> bool:
            tables = await client.tables("prefill")
            return bool(tables["inflight"]) and not tables["chunked"]

        await until(parked, "the chunked request is not parked")
        tables = await client.tables("prefill")
        assert tables["metadata_free"] == tables["metadata_total"] - 1
        assert free_kv(tables) < tables["kv_total"]
        assert not sent.prefill.done()
        assert not sent.decode.done()

    assert_told(await sent.prefill, await sent.decode)
    assert (await sent.prefill).finish_type == "abort"
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_inflight_with_a_chunk_that_was_not_taken_yet(pair: Pair, client: Client) -> None:
    with pair.held_transfers():
        sent = client.send(Order(text=text(pair, "g", 12_000)))
        await until_in(client, "inflight")
        await client.abort(sent.order.rid)
        tables = await client.tables("prefill")
        assert (tables["inflight"], tables["metadata_free"]) == (1, tables["metadata_total"] - 1)
        assert not sent.decode.done()

    assert_told(await sent.prefill, await sent.decode)
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_inflight_whose_last_chunk_is_being_written(pair: Pair, client: Client) -> None:
    """Up to 0.5.19 the abort comes too late: decode has its Success, and is never told anything else. From 0.5.20 the
    worker looks again after the write, and it is a failure on both sides."""
    with pair.held_transfers():
        sent = client.send(Order(text=text(pair, "h", 1_000)))
        await until_in(client, "inflight")
        await client.abort(sent.order.rid)
        assert not sent.decode.done()

    if pair.spec.prefill.sglang >= "0.5.20":
        assert_told(await sent.prefill, await sent.decode)
        await assert_nothing_is_left(pair, client, sent.order.room)
        return
    assert (await sent.decode).is_good
    assert (await sent.prefill).status == 200
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_running(pair: Pair, client: Client) -> None:
    """With overlap the abort meets a forward whose result is still out: stock ignores it and sends. Without overlap
    the result is there first, and the abort finds the request being sent or gone."""
    if not pair.spec.prefill.overlap or pair.spec.prefill.pp > 1:
        pytest.skip("only overlap scheduling has this window")
    sent = client.send(Order(text=text(pair, "i", 6_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=sent.order.room)
    await asyncio.sleep(0.2)  # the forward takes longer, its result is looked at one iteration later
    await client.abort(sent.order.rid)

    prefill, decode = await sent.prefill, await sent.decode
    assert prefill.finish_type == "abort"
    assert_told(prefill, decode)
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_abort_all_with_requests_in_every_queue(pair: Pair, client: Client) -> None:
    lone = client.send_prefill(Order(text=text(pair, "j", 500)))
    chunked = client.send(Order(text=text(pair, "k", 16_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=chunked.order.room)
    waiting = [client.send(Order(text=text(pair, "l", 4_000))) for _ in range(4)]
    for one in waiting:
        await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=one.order.room)

    await client.abort_all()

    await lone
    for one in (chunked, *waiting):
        assert_told(await one.prefill, await one.decode)
        await assert_nothing_is_left(pair, client, one.order.room)


async def test_client_goes_away(pair: Pair, client: Client) -> None:
    sent = client.send(Order(text=text(pair, "m", 16_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=sent.order.room)
    sent.prefill.cancel()
    aborted = await pair.events.wait_for("abort", role="prefill", rid=sent.order.rid)

    decode = await sent.decode

    assert not decode.is_good
    assert decode.answered_at - aborted["t"] < 10.0  # the running chunk comes first
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_decodes_own_client_goes_away(pair: Pair, client: Client) -> None:
    """Decode's ABORT ends prefill's half; nothing is left and nothing hangs."""
    sent = client.send(Order(text=text(pair, "n", 6_000)))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=sent.order.room)
    await client.abort(sent.order.rid, role="decode")
    await pair.events.wait_for("in", role="prefill", tag="ABORT", room=sent.order.room)

    await sent.decode
    await sent.prefill
    await assert_nothing_is_left(pair, client, sent.order.room)


async def test_rounds_of_mixed_traffic(pair: Pair, client: Client) -> None:
    """`make stress` in short: nothing hangs, is left behind or wrong."""
    if is_uneven(pair):
        pytest.skip("a cached prefix is sent in one piece, which Mooncake's TCP refuses here")
    player = Player(pair, client, await expected_outputs(client))
    for number in range(STRESS_ROUNDS):
        await player.play(plan(STRESS_SEED, number))

    assert player.tally.wrongs == []


async def test_no_fault_was_contained_on_the_way(pair: Pair, client: Client) -> None:
    """Comes after all that ends requests: a contained fault would hide behind stock behaviour."""
    for tables in await tables_of_ranks(pair, client):
        report = tables["plugin"]
        assert report["faults"] == {}
        assert report["stream"]["connected"]
        assert report["counts"]["undrained_lives"] == 0
        assert report["lives"]["open"] == 0


async def test_one_rank_is_killed(pair: Pair, client: Client) -> None:
    """Comes last. The other rank may still write and cannot go on, its scheduler waits for the dead one in a collective
    (sglang ends it a minute later): it ends its half of each request outside the scheduler, once drained."""
    if pair.spec.prefill.tp == 1:
        pytest.skip("there is only one rank")
    sent = [client.send(Order(text=text(pair, "o", 16_000))) for _ in range(3)]
    for one in sent:
        await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=one.order.room)
    victim = psutil.Process(pair.prefill.scheduler_pids()[-1])

    victim.kill()
    await asyncio.to_thread(psutil.wait_procs, [victim], timeout=DEATH_LIMIT_S)
    died_at = time.monotonic()

    for answer in [await one.decode for one in sent]:
        assert not answer.is_good
        assert answer.answered_at - died_at < TOLD_OF_DEATH_S
