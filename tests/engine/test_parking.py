"""From 0.5.20 sglang retires an aborted request when the result of its forward pass is there: with chunks of it on the
way, it has to wait."""

from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler import Scheduler

from tests.engine.stage import Stage

RETIRE = "_retire_aborted_prefill_result"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not hasattr(Scheduler, RETIRE), reason="from 0.5.20"),
]

ROOM = 4723
LATE = "Request running timeout reached."


def aborted(stage: Stage) -> Any:
    """A request of three chunks, the first of which is being written; the last one's forward is running."""
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    req.to_finish = FINISH_ABORT(LATE, 503)
    return req


def retire(stage: Stage, req: Any) -> bool:
    answer: bool = getattr(stage.scheduler, RETIRE)(req)
    return answer


def test_it_keeps_pages_and_slot_until_its_chunks_are_through(stage: Stage, released: list[str]) -> None:
    req = aborted(stage)

    assert not retire(stage, req)
    assert stage.scheduler.disagg_prefill_inflight_queue == [req]
    stage.poll_inflight()
    assert (released, stage.answers, stage.failures(ROOM), stage.free_slots()) == ([], [], [], 7)

    stage.transfers.gate.set()
    stage.drained(req)
    stage.poll_inflight()
    assert released == [req.rid]
    assert [(rid, reason.message, reason.status_code) for rid, reason in stage.answers] == [(req.rid, LATE, 503)]
    assert [(fact.cause, fact.http_status, fact.drained) for fact in stage.failures(ROOM)] == [(LATE, 503, True)]
    assert stage.free_slots() == 8
    assert not stage.knows(ROOM)


def test_a_result_that_comes_after_it_was_parked_changes_nothing(stage: Stage, released: list[str]) -> None:
    req = aborted(stage)
    retire(stage, req)

    assert not retire(stage, req)
    assert stage.scheduler.disagg_prefill_inflight_queue == [req]
    assert released == []


def test_stock_releases_it_under_the_writer(stock: Stage, released: list[str]) -> None:
    req = aborted(stock)
    req.kv.holds_kv = True

    assert retire(stock, req)
    assert released == [req.rid]
    assert stock.transfers.written == []


def test_of_which_nothing_was_sent_it_ends_at_once(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode())
    req.to_finish = FINISH_ABORT()

    assert retire(stage, req)
    assert len(stage.failures(ROOM)) == 1
    assert not stage.knows(ROOM)
