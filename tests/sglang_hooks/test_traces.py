"""The trace of a request goes with the word that its life has begun, and nothing of it can hurt."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.contain import FAULTS
from sglang_hooks.hooks.manager import RANK_ATTRIBUTE
from sglang_hooks.hooks.traces import note_trace
from sglang_hooks.rank import Rank
from sidecar.model import RoomOpened
from tests.sglang_hooks.test_rank import ROOM, MakeRank, listen

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


class Untraced:
    """sglang's `TraceNullContext`: whatever else it is asked for, it is itself."""

    tracing_enable = False

    def __getattr__(self, _: str) -> "Untraced":
        return self


def traced() -> Any:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context  # noqa: PLC0415

    span = NonRecordingSpan(SpanContext(TRACE_ID, SPAN_ID, is_remote=True, trace_flags=TraceFlags(1)))
    return SimpleNamespace(tracing_enable=True, root_span_context=set_span_in_context(span))


def request(context: Any, room: int = ROOM) -> Any:
    return SimpleNamespace(bootstrap_room=room, time_stats=SimpleNamespace(trace_ctx=context))


def scheduler_of(rank: Rank) -> Any:
    manager = SimpleNamespace(**{RANK_ATTRIBUTE: rank})
    return SimpleNamespace(disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager))


def test_the_word_that_a_life_has_begun_carries_it(make_rank: MakeRank) -> None:
    rank = make_rank()
    told = listen(rank)
    note_trace(scheduler_of(rank), request(traced()))
    rank.open(ROOM, rank.traceparent_of(ROOM))

    assert told == [RoomOpened(1, ROOM, 1, TRACEPARENT)]
    assert [fact for fact in rank.replay() if isinstance(fact, RoomOpened)] == told


def test_another_request_has_not_got_it(make_rank: MakeRank) -> None:
    rank = make_rank()
    note_trace(scheduler_of(rank), request(traced()))

    assert rank.traceparent_of(ROOM + 1) == ""
    note_trace(scheduler_of(rank), request(Untraced()))
    assert rank.traceparent_of(ROOM) == ""


@pytest.mark.parametrize("context", [None, SimpleNamespace(), SimpleNamespace(tracing_enable=True)])
def test_what_is_no_context_of_sglangs_is_a_contained_fault(context: Any, make_rank: MakeRank) -> None:
    rank = make_rank()
    before = FAULTS["traceparent_of"]
    note_trace(scheduler_of(rank), request(context))

    assert rank.traceparent_of(ROOM) == ""
    assert FAULTS["traceparent_of"] == before + 1


def test_a_context_that_sglang_has_not_begun_is_none(make_rank: MakeRank) -> None:
    rank = make_rank()
    note_trace(scheduler_of(rank), request(SimpleNamespace(tracing_enable=True, root_span_context=None)))

    assert rank.traceparent_of(ROOM) == ""
