"""The trace of a request as sglang's own classes carry it to a scheduler is found by the plugin."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from sglang_hooks.hooks.traces import traceparent_of
from tests.drift.test_drift import SERVED
from tests.drift.wheel import wheel_of

TRACE = "sglang.srt.observability.trace"
CLIENTS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENTS_SPAN = "b7ad6b7169203331"


def _stub(name: str, **members: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module


@pytest.fixture(params=SERVED)
def tracing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """sglang's module, by itself, as if `--enable-trace` had initialised it."""
    resources = SimpleNamespace(trace_level=3)
    stubs = {
        "sglang.srt.environ": {"envs": None},
        "sglang.srt.utils": {"get_int_env_var": lambda _, default: default},
        "sglang.srt.runtime_context": {"get_resources": lambda: resources},
        "opentelemetry.exporter.otlp.proto.grpc.trace_exporter": {"OTLPSpanExporter": None},
    }
    for name, members in stubs.items():
        monkeypatch.setitem(sys.modules, name, _stub(name, **members))
    module: Any = _stub(TRACE)
    monkeypatch.setitem(sys.modules, TRACE, module)
    exec(compile(wheel_of(request.param).source(TRACE), TRACE, "exec"), vars(module))  # noqa: S102 - a published sglang
    module.opentelemetry_initialized = True
    module.tracer = TracerProvider().get_tracer("sglang server")
    return module


def said_at_a_scheduler(tracing: Any, headers: dict[str, str]) -> str:
    """Of a request whose context has gone from the tokenizer process to a scheduler."""
    begun = tracing.TraceReqContext("rid", 7, "prefill", "request", external_trace_header=headers)
    begun.trace_req_start()
    arrived = tracing.TraceReqContext.__new__(tracing.TraceReqContext)
    arrived.__setstate__(begun.__getstate__())
    said = traceparent_of(SimpleNamespace(time_stats=SimpleNamespace(trace_ctx=arrived)))
    for context in (begun, arrived):
        context.tracing_enable = False  # else its `__del__` goes on with spans, and imports what is not here
    return said


def test_it_continues_the_clients_trace_below_sglangs_own_span(tracing: Any) -> None:
    said = said_at_a_scheduler(tracing, {"traceparent": f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01"})

    version, trace, span, flags = said.split("-")
    assert (version, trace, flags) == ("00", CLIENTS_TRACE, "01")
    assert len(span) == 16
    assert span != CLIENTS_SPAN, "sglang's span, which is a child of the client's"


def test_a_client_without_a_trace_is_in_sglangs(tracing: Any) -> None:
    assert len(said_at_a_scheduler(tracing, {})) == 55


def test_a_request_that_is_not_traced_has_none(tracing: Any) -> None:
    untraced = SimpleNamespace(time_stats=SimpleNamespace(trace_ctx=tracing.TraceNullContext()))

    assert traceparent_of(untraced) == ""


@pytest.mark.parametrize("version", SERVED)
def test_asynchronous_tracing_keeps_it_in_the_same_place(version: str) -> None:
    source = wheel_of(version).source("sglang.srt.observability.trace_async")
    assert "self.root_span_context = propagate.extract(self._root_span_carrier)" in source
