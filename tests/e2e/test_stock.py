"""What the plugin is for, on stock: the hang, and what stock leaves behind. And stock is what is left when it is
switched off."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import remains
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

TIMEOUT_S = 8
TRACE_ROOM = 1_234_567_890


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pair(PairSpec.of(plugin=False, timeout_s=TIMEOUT_S), "stock") as running:
        yield running


async def abort_waiting(pair: Pair, client: Client) -> tuple[Order, float]:
    """The order of a waiting request that was aborted, and how long decode's client waited after prefill's was
    answered."""
    busy = client.send(Order(text="a" * 10_000))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=busy.order.room)
    waiting = client.send(Order(text="b" * 2_000))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=waiting.order.room)
    await client.abort(waiting.order.rid)
    prefill, decode = await waiting.prefill, await waiting.decode
    assert not decode.is_good
    return waiting.order, decode.answered_at - prefill.answered_at


async def test_stock_decode_hangs_and_stock_prefill_keeps_the_room(pair: Pair, client: Client) -> None:
    order, hung_s = await abort_waiting(pair, client)

    assert hung_s > TIMEOUT_S / 2
    assert {"request_status", "transfer_infos"} <= set(remains(await client.tables("prefill"), order.room))


async def test_switched_off_is_stock_byte_for_byte(pair: Pair) -> None:
    """The wire trace of one request. Ports, session ids and buffer addresses differ from process to process and are
    masked."""
    spec = PairSpec.of(plugin=True, timeout_s=TIMEOUT_S, env={"PD_SIDECAR_DISABLE": "1"})
    with running_pair(spec, "switched-off") as off:
        traces = [await trace(each) for each in (pair, off)]
        assert off.sidecar_pid() is None
        async with Client(off) as client:
            _, hung_s = await abort_waiting(off, client)
            info = await client.server_info("prefill")

    assert traces[0] == traces[1]
    assert len(traces[0]) >= 3
    assert hung_s > TIMEOUT_S / 2
    assert "pd_sidecar" not in info["internal_states"][0]
    assert "switched off by PD_SIDECAR_DISABLE" in off.prefill.log.read_text()


async def trace(pair: Pair) -> list[tuple[str, str, list[str]]]:
    async with Client(pair) as client:
        sent = client.send(Order(text="trace me", room=TRACE_ROOM))
        assert (await sent.prefill).is_good
        assert (await sent.decode).is_good
    events = [
        event for event in pair.events.all() if event["kind"] in {"in", "out"} and event.get("room") == TRACE_ROOM
    ]
    return [(event["role"], event["kind"], masked(event["frames"])) for event in events]


def masked(frames: list[str]) -> list[str]:
    """Handshakes: the port and session of decode's process, and where in its pools it put the request."""
    is_handshake = len(frames) > 8
    own: dict[int, Any] = (
        {2: "port", 3: "session", 4: f"{len(frames[4]) // 8} indices", 5: "slot"} if is_handshake else {}
    )
    return [str(own.get(position, frame)) for position, frame in enumerate(frames)]
