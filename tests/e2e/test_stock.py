"""What the plugin is for, on stock: the hang, and what stock leaves behind. And stock is what is left when it is
switched off."""

from typing import Any

import pytest

from tests.e2e.conftest import ended_before_decode
from tests.pair.rest import remains
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

TIMEOUT_S = 25
TRACE_ROOM = 1_234_567_890

Trace = list[tuple[str, str, list[str]]]


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """What the pairs of this module said on the wire; they run one after the other."""
    return {}


async def hung_s(pair: Pair, client: Client) -> float:
    """How long decode's client waited after prefill's was answered, for a request aborted before its turn."""
    busy = client.send(Order(text="a" * 6_000))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=busy.order.room)
    waiting = client.send(Order(text="b" * 2_000))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=waiting.order.room)
    await client.abort(waiting.order.rid)
    prefill, decode = await waiting.prefill, await waiting.decode
    assert not decode.is_good
    return decode.answered_at - prefill.answered_at


async def test_stock_decode_hangs_and_stock_prefill_keeps_the_room(traces: dict[str, Trace]) -> None:
    with running_pair(PairSpec.of(plugin=False, timeout_s=TIMEOUT_S), "stock") as pair:
        traces["stock"] = await trace(pair)
        async with Client(pair) as client:
            seconds = await hung_s(pair, client)
            late = await ended_before_decode(client)
            decode = await client.send_decode(late)
            tables = await client.tables("prefill")

    assert seconds > TIMEOUT_S / 3
    assert decode.took_s > TIMEOUT_S / 3
    assert {"request_status", "transfer_infos"} <= set(remains(tables, late.room))


async def test_switched_off_is_stock_byte_for_byte(traces: dict[str, Trace]) -> None:
    """The wire trace of one request. Ports, session ids and buffer addresses differ from process to process: masked."""
    spec = PairSpec.of(plugin=True, timeout_s=TIMEOUT_S, env={"PD_SIDECAR_DISABLE": "1"})
    with running_pair(spec, "switched-off") as pair:
        traces["off"] = await trace(pair)
        assert pair.sidecar_pid() is None
        async with Client(pair) as client:
            seconds = await hung_s(pair, client)
            info = await client.server_info("prefill")
        log = pair.prefill.log.read_text()

    assert len(traces["stock"]) >= 3
    assert traces["off"] == traces["stock"]
    assert seconds > TIMEOUT_S / 3
    assert "pd_sidecar" not in info["internal_states"][0]
    assert "switched off by PD_SIDECAR_DISABLE" in log


async def trace(pair: Pair) -> Trace:
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
