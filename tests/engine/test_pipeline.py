"""Prefill in stages: no stage may change a queue on what it alone has heard, and chunked aborts are processed."""

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
from sglang.srt.managers.io_struct import AbortReq

from tests.engine.stage import Request, Stage

pytestmark = pytest.mark.engine

ROOM = 4711

takes_lists = pytest.mark.skipif(
    "pp_good_rids" not in inspect.signature(inspect.unwrap(PrefillBootstrapQueue.pop_bootstrapped)).parameters,
    reason="up to 0.5.21: later, the first stage's own poll is what all follow",
)


def staged(stage: Stage) -> Any:
    """The bootstrap queue of one of two pipeline stages; what the consensus of the stages says is the test's choice."""
    queue = PrefillBootstrapQueue.__new__(PrefillBootstrapQueue)
    vars(queue).update(queue=[], pp_size=2, scheduler=stage.scheduler, kv_manager=stage.manager)
    stage.scheduler.disagg_prefill_bootstrap_queue = queue
    stage.manager.pp_size = stage.scheduler.ps.pp_size = 2
    vars(stage.scheduler).update(running_mbs=[], mbs=[])
    return queue


def popped(queue: Any, *, good: Sequence[str] = (), bad: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    ready, failed = queue.pop_bootstrapped(return_failed_reqs=True, pp_good_rids=list(good), pp_bad_rids=list(bad))
    return [req.rid for req in ready], [req.rid for req in failed]


def failed_here(stage: Stage) -> tuple[Any, Request]:
    """Decode's ABORT has reached this stage's socket; the consensus does not name the request yet."""
    queue, decode = staged(stage), stage.decode()
    req = stage.handshaken(ROOM, decode)
    req.pending_bootstrap = True
    queue.queue.append(req)
    decode.abort(ROOM)
    stage.dealt_with(decode)
    return queue, req


@takes_lists
def test_a_failure_of_one_stage_alone_waits_for_the_consensus(stage: Stage, stock: Stage) -> None:
    """The other stage may have found the request ready in the round before, and then computes it: stock, which has
    dropped it here, waits for good for its hidden states."""
    queue, req = failed_here(stock)
    assert popped(queue) == ([], [req.rid])

    queue, req = failed_here(stage)
    assert popped(queue) == ([], [])
    assert queue.queue == [req]
    assert popped(queue, bad=[req.rid]) == ([], [req.rid])
    assert queue.queue == []


@takes_lists
def test_a_request_that_all_stages_found_ready_goes_on_whatever_this_one_has_heard_since(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillBootstrapQueue, "finalize_bootstrap", lambda _queue, _req: True)
    queue, req = failed_here(stage)

    assert popped(queue, good=[req.rid]) == ([req.rid], [])


@takes_lists
@pytest.mark.parametrize("stage_number", [0, 1])
def test_a_request_aborted_while_word_goes_round_that_it_is_ready_is_not_computed(
    stage: Stage, stock: Stage, monkeypatch: pytest.MonkeyPatch, stage_number: int
) -> None:
    """The abort is broadcast: the first stage has it before the consensus comes back, and forwards what it has popped;
    the other one follows that."""
    monkeypatch.setattr(PrefillBootstrapQueue, "finalize_bootstrap", lambda _queue, _req: True)
    outcomes = []
    for each in (stock, stage):
        queue, decode = staged(each), each.decode()
        each.manager.pp_rank = stage_number
        req = each.handshaken(ROOM, decode)
        req.pending_bootstrap = True
        queue.queue.append(req)
        each.scheduler.abort_request(AbortReq(rid=req.rid))
        outcomes.append(popped(queue, good=[req.rid]))
        assert queue.queue == []

    ready, failed = ([req.rid], []), ([], [req.rid])
    assert outcomes == [ready, failed if stage_number == 0 else ready]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pending_chunked_abort_is_processed_before_the_next_chunk(stage: Stage, stages: int) -> None:
    """In the loop of the pipeline; the loop without one does it itself."""
    asked: list[str] = []
    staged(stage)
    scheduler = stage.scheduler
    stage.manager.pp_size = stages
    vars(scheduler)["process_pending_chunked_abort"] = lambda: asked.append("asked")

    scheduler.process_prefill_chunk(last_batch=None, running_batch=None)

    assert asked == ["asked"] * (stages - 1)
