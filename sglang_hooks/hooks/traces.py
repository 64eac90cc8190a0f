"""The span of a request in sglang's own trace, below which the sidecar's span of its life belongs.

With `--enable-trace` every scheduler has it in `req.time_stats.trace_ctx`: of the span that sglang began where it took
the request, which continues the trace of the client's `traceparent` header if there was one. A sender is not told
which request it is of, so the context is noted when the request comes to its queue, where its sender is made.
"""

from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hooks.manager import rank_of_scheduler


@contained(otherwise=None)
def note_trace(scheduler: Any, req: Any) -> None:
    rank = rank_of_scheduler(scheduler)
    if rank is not None:
        rank.coming = (req.bootstrap_room, traceparent_of(req))


@contained(otherwise="")
def traceparent_of(req: Any) -> str:
    """As W3C writes it; "" for a request that is not traced."""
    context = req.time_stats.trace_ctx
    if not context.tracing_enable or context.root_span_context is None:
        return ""
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - it is there when sglang traces

    span = get_current_span(context.root_span_context).get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else ""
