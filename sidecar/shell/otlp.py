"""Spans on their way to a collector: OpenTelemetry's SDK with its OTLP exporter over HTTP. Needs the extra `otel`.

A span that is recorded goes into the SDK's bounded queue; a thread of the SDK sends. What the standard variables say
(`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES`, ...) holds.
"""

import asyncio
import contextlib
import logging
import threading

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from sidecar.shell.spans import LifeSpan, Parent

EXPORT_LIMIT_S = 5.0
"""For one batch, its repetitions included."""

TEXT_LIMIT = 300


class SpanExport:
    def __init__(self, processor: SpanProcessor, *, version: str) -> None:
        self._ids = _GivenIds()
        ours = Resource({"service.name": "pd-sidecar", "service.version": version})
        self._provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("pd_sidecar", version)

    @classmethod
    def to(cls, endpoint: str, *, version: str) -> "SpanExport":
        """`endpoint` is a collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
        _log_as_we_do()
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_LIMIT_S)
        return cls(BatchSpanProcessor(exporter), version=version)

    def record(self, span: LifeSpan) -> None:
        self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
        started = self._tracer.start_span(
            span.name,
            context=_below(span.parent),
            start_time=span.began_at_ns,
            attributes=span.attributes,
        )
        for event in span.events:
            attributes = {"pd_sidecar.endpoint": event.endpoint} if event.endpoint else None
            started.add_event(event.name, attributes=attributes, timestamp=event.at_ns)
        if span.failure:
            started.set_status(Status(StatusCode.ERROR, span.failure))
        started.end(end_time=span.ended_at_ns)

    async def close(self, limit_s: float) -> None:
        """Sends what waits, as far as that goes in the time. The thread is left behind if it hangs."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop did not wait for us
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await done.wait()


def _below(parent: Parent | None) -> Context:
    if parent is None:
        return Context()
    context = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return set_span_in_context(NonRecordingSpan(context), Context())


class _GivenIds(IdGenerator):
    """The SDK asks for both numbers inside `start_span`, on the caller's thread."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def _log_as_we_do() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [_ToOurLog(logging.WARNING)]


class _ToOurLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger("sidecar").warning("spans not exported", reason=record.getMessage()[:TEXT_LIMIT])
