"""Spans of lives: what they say, whose children they are, and that nothing waits for them."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sidecar.model import RoomOpened
from sidecar.shell.otlp import SpanExport
from sidecar.shell.spans import AT_ONCE, WAITING_LIMIT, LifeSpan, LifeSpans
from tests.core.scene import E1, E2, START, Scene
from tests.shell.scene import LIMIT_S

EPOCH_NS = 1_800_000_000 * 10**9
"""The calendar's time when the scene begins."""

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A scene whose lives become spans in memory. `gather` plays the shell: it shows what happened, lets the loop have
    its turns, and gives the spans made since."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.scene.join()
        self.exporter = InMemorySpanExporter()
        export = SpanExport(SimpleSpanProcessor(self.exporter), version="1")
        self.spans = LifeSpans(
            self.scene.notifier,
            record=export.record,
            loop=asyncio.get_running_loop(),
            clock=lambda: self.scene.now,
            wall_ns=lambda: EPOCH_NS + int((self.scene.now - START) * 1e9),
        )

    def gather(self) -> list[ReadableSpan]:
        self.spans.report(self.scene.notifier.take_finished())
        self.spans.finish()
        spans = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return spans


def seconds(at_ns: int | None) -> float:
    assert at_ns is not None
    return round((at_ns - EPOCH_NS) / 1e9, 3)


def events(span: ReadableSpan) -> list[tuple[float, str]]:
    return [(seconds(event.timestamp), event.name) for event in span.events]


async def test_a_life_is_one_span_from_its_first_word_to_its_last_settlement() -> None:
    traced = Traced()
    scene = traced.scene
    scene.opened(7, 1)
    scene.advance(1.0)
    scene.handshake(7, 1, E1)
    scene.advance(1.0)
    scene.failed(7, 1, cause="Aborted by AbortReq.", http_status=499)
    assert traced.gather() == []

    scene.advance(5.0)
    [span] = traced.gather()
    assert span.name == "pd_sidecar.life"
    assert (seconds(span.start_time), seconds(span.end_time)) == (0.0, 7.0)
    assert events(span) == [
        (0.0, "prefill has the request"),
        (1.0, "shook hands"),
        (2.0, "given up: drained, nothing more is written"),
        (2.0, "first hand-off"),
        (7.0, "over: held_up"),
    ]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "Aborted by AbortReq."
    assert dict(span.attributes or {}) == {
        "bootstrap_room": "0x7",
        "pd_sidecar.room": 7,
        "pd_sidecar.life": 1,
        "pd_sidecar.process": "p",
        "pd_sidecar.engine": "engine",
        "pd_sidecar.prefill_rank": 0,
        "pd_sidecar.state": "failed",
        "pd_sidecar.cause": "Aborted by AbortReq.",
        "http.response.status_code": 499,
        "pd_sidecar.endpoints": ("127.0.0.1:7001",),
        "pd_sidecar.endpoint_count": 1,
        "pd_sidecar.outcomes": ("held_up",),
        "pd_sidecar.hand_offs": 1,
        "pd_sidecar.refusals": 0,
    }


async def test_a_success_is_a_span_too_and_no_error() -> None:
    traced = Traced()
    scene = traced.scene
    scene.opened(7, 1)
    scene.handshake(7, 1, E1)
    scene.advance(1.0)
    told = scene.succeeded(7, 1)
    traced.spans.taken(scene.streams["p"], [told])

    [span] = traced.gather()
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["pd_sidecar.state"] == "succeeded"
    assert events(span)[-1] == (1.0, "the transfer succeeded")
    traced.spans.taken(scene.streams["p"], [scene.succeeded(7, 1)])
    assert traced.gather() == [], "said again, it is no second end"


async def test_it_hangs_below_sglangs_span_of_the_request() -> None:
    traced = Traced()
    scene = traced.scene
    scene.tell(RoomOpened(scene.seq(), 7, 1, TRACEPARENT))
    scene.failed(7, 1)

    [span] = traced.gather()
    assert f"{span.context.trace_id:x}" == "af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert f"{span.parent.span_id:x}" == "b7ad6b7169203331"
    assert span.parent.is_remote


async def test_a_request_that_sglang_does_not_sample_is_no_span() -> None:
    traced = Traced()
    scene = traced.scene
    scene.tell(RoomOpened(scene.seq(), 7, 1, TRACEPARENT[:-2] + "00"))
    scene.failed(7, 1)

    assert traced.gather() == []


@pytest.mark.parametrize("traceparent", ["", "junk", TRACEPARENT + "-more", f"00-{'0' * 32}-{'0' * 16}-01"])
async def test_without_a_trace_all_ranks_of_a_room_share_one_that_is_made_of_it(traceparent: str) -> None:
    traced = Traced()
    scene = traced.scene
    scene.join("q")
    scene.tell(RoomOpened(scene.seq(), 7, 1, traceparent))
    scene.failed(7, 1)
    scene.failed(7, 4, process="q")
    scene.failed(8, 2)

    first, second, other = traced.gather()
    assert first.parent is None
    assert first.context.trace_id == second.context.trace_id
    assert first.context.trace_id != other.context.trace_id
    assert first.context.span_id != second.context.span_id


async def test_a_late_handshake_is_a_span_of_its_own_below_the_first() -> None:
    traced = Traced()
    scene = traced.scene
    scene.handshake(7, 1, E1)
    scene.failed(7, 1)
    scene.advance(5.0)
    [first] = traced.gather()
    scene.advance(1.0)
    scene.handshake(7, 1, E2)
    scene.advance(5.0)

    [again] = traced.gather()
    assert again.name == "pd_sidecar.owed_again"
    assert again.parent is not None
    assert again.parent.span_id == first.context.span_id
    assert again.context.trace_id == first.context.trace_id
    assert events(again) == [(6.0, "shook hands"), (6.0, "first hand-off"), (11.0, "over: held_up")]


async def test_a_successor_gives_the_same_numbers() -> None:
    numbers = []
    for _ in range(2):
        traced = Traced()
        traced.scene.failed(7, 1)
        [span] = traced.gather()
        numbers.append((span.context.trace_id, span.context.span_id))

    assert numbers[0] == numbers[1]


async def test_a_storm_holds_the_loop_for_a_few_spans_at_a_time_and_the_rest_is_counted() -> None:
    traced = Traced()
    scene = traced.scene
    made: list[LifeSpan] = []
    has_begun = asyncio.Event()

    def record(span: LifeSpan) -> None:
        made.append(span)
        has_begun.set()

    traced.spans._record = record  # noqa: SLF001 - no span is needed, only when they are made
    for room in range(WAITING_LIMIT + 5):
        scene.failed(room, 1)
    traced.spans.report(scene.notifier.take_finished())
    assert made == [], "whoever reports does not wait for a span"

    async with asyncio.timeout(LIMIT_S):
        await has_begun.wait()
    assert len(made) == AT_ONCE
    traced.spans.finish()
    assert dict(traced.spans.counts) == {"made": WAITING_LIMIT, "dropped": 5}
