"""When the scheduler was told to abort, and when prefill computes what."""

from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from pd_sidecar_shim.journal import ROLE, note
from pd_sidecar_shim.patching import wrap


def apply() -> None:
    wrap(Scheduler, "abort_request", _abort)
    if ROLE == "prefill":
        wrap(Scheduler, "run_batch", _run_batch)


def _abort(original: Any, scheduler: Any, order: Any) -> Any:
    note("abort", rid=order.rid, abort_all=bool(order.abort_all))
    return original(scheduler, order)


def _run_batch(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """On a CPU the forward pass is over when the call returns; with overlap its result waits one iteration more."""
    rids = [req.rid for req in batch.reqs]
    for rid in rids:
        note("forward_began", rid=rid)
    result = original(scheduler, batch, *args, **kwargs)
    for rid in rids:
        note("forward_ended", rid=rid)
    return result
