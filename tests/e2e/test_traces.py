"""One trace from the client to what decode was told: sglang's own spans (--enable-trace) and the sidecar's."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import assert_told, until, until_in
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order
from tests.pair.venvs import ensure_venv
from tests.shell.collector import Collector, Span

SGLANG = "0.5.18"


@dataclass(frozen=True)
class Traced:
    pair: Pair
    collector: Collector


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    ensure_venv(SGLANG, tracing=True)
    with Collector().serving() as collector:
        args = ("--enable-trace", "--otlp-traces-endpoint", f"{collector.url}/v1/traces")
        env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "PD_SIDECAR_OTLP_ENDPOINT": collector.url}
        spec = PairSpec.of(sglang=SGLANG, timeout_s=60, prefill={"args": args, "env": env})
        with running_pair(spec, "traced") as pair:
            yield Traced(pair, collector)


@pytest.fixture
def pair(traced: Traced) -> Pair:
    return traced.pair


async def test_the_life_hangs_below_sglangs_span_in_the_clients_trace(traced: Traced, client: Client) -> None:
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    order = Order(text="traced " * 900, traceparent=f"00-{trace}-{parent}-01")

    def of_the_trace() -> dict[str, Span]:
        return {span.span_id.hex(): span for span in traced.collector.spans if span.trace_id.hex() == trace}

    def life() -> Span | None:
        return next((span for span in of_the_trace().values() if span.name == "pd_sidecar.life"), None)

    async def is_whole() -> bool:
        found = life()
        return found is not None and found.parent_span_id.hex() in of_the_trace()

    sent = client.send(order)
    with traced.pair.held_transfers():
        await until_in(client, "inflight")
        await client.abort(order.rid)
    assert_told(await sent.prefill, await sent.decode)

    await until(is_whole, "the sidecar's span below one of sglang's")
    found = life()
    assert found is not None
    assert {one.key: one.value.string_value for one in found.attributes}["bootstrap_room"] == hex(order.room)
    assert ancestors(found, of_the_trace())[-1].parent_span_id.hex() == parent


def ancestors(span: Span, spans: dict[str, Span]) -> list[Span]:
    """Itself first."""
    found = [span]
    while (above := spans.get(found[-1].parent_span_id.hex())) is not None:
        found.append(above)
    return found
