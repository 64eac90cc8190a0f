"""Hooks for prefill in stages (pipeline parallelism): what stock's loop for it leaves out, or decides on one stage
alone.

Every stage meets the same requests, aborts and consensus in the same turn of its loop; what a stage's own socket hears
(decode's abort, a lost peer) it hears when it may. Queues may only follow the former: stages that launch different
batches wait for each other for good.
"""

from collections.abc import Callable
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hooks.agreement import BOOTSTRAPPING, FAILED
from sglang_hooks.hooks.manager import rank_of


class PipelineHooks:
    def __init__(self) -> None:
        self._is_popping = False
        self._scheduler_of_one: Any = None  # a scheduler, and a queue, that were found to be of one stage
        self._queue_of_one: Any = None

    def around_prefill_chunk(self, original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """The pipeline's loop never looks for pending chunked aborts: done here, where the loop without one does it."""
        if scheduler is not self._scheduler_of_one and self._is_staged(scheduler):
            scheduler.process_pending_chunked_abort()
        original(scheduler, *args, **kwargs)

    @contained(otherwise=False)
    def _is_staged(self, scheduler: Any) -> bool:
        manager = scheduler.disagg_prefill_bootstrap_queue.kv_manager
        if rank_of(manager) is None:
            return False
        if manager.pp_size == 1:
            self._scheduler_of_one = scheduler
        return bool(manager.pp_size > 1)

    def around_pop_bootstrapped(self, original: Callable[..., Any], queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Polls made in here are about requests that the consensus of the stages does not name (stock up to 0.5.21
        drops those that have failed on this stage, while another may be about to compute them; later ones ask the
        first stage)."""
        if queue is self._queue_of_one:
            return original(queue, *args, **kwargs)
        self._is_popping = self._pops_by_consensus(queue)
        try:
            return original(queue, *args, **(self._without_aborted(queue, kwargs) or kwargs))
        finally:
            self._is_popping = False

    @contained(otherwise=None)
    def _without_aborted(self, queue: Any, lists: dict[str, Any]) -> dict[str, Any] | None:
        """A request that was aborted while word went round that it is ready: stock computes all of it, and only then
        answers its client. The first stage says here what the others will pop, so it is the one to call it failed."""
        good, bad = lists.get("pp_good_rids"), lists.get("pp_bad_rids")
        if not self._is_popping or good is None or bad is None or queue.kv_manager.pp_rank != 0:
            return None
        aborted = {req.rid for req in queue.queue if req.finished_reason is not None}
        moved = [rid for rid in good if rid in aborted]
        return {
            **lists,
            "pp_good_rids": [rid for rid in good if rid not in aborted],
            "pp_bad_rids": [*bad, *moved],
        }

    @contained(otherwise=False)
    def _pops_by_consensus(self, queue: Any) -> bool:
        if rank_of(queue.kv_manager) is None:
            return False
        if queue.pp_size == 1:
            self._queue_of_one = queue
        return bool(queue.pp_size > 1)

    def agreed(self, polls: list[int]) -> list[int]:
        """Without the failures of this stage alone. A next round of the consensus has them, for all stages."""
        if not self._is_popping:
            return polls
        return [BOOTSTRAPPING if poll == FAILED else poll for poll in polls]
