"""Hooks on sglang's `Scheduler` in the prefill role: the ends that stock forgets, and the agreed end of those it
does not.

Membership of the inflight queue changes only on facts that all ranks share: the broadcast abort, or a reduced poll.
"""

from collections.abc import Callable, Iterable
from typing import Any

from sglang_hooks import causes
from sglang_hooks.compat import EngineParts
from sglang_hooks.contain import contained
from sglang_hooks.hooks.agreement import FAILED, EndingPoller, settle_verdict
from sglang_hooks.hooks.manager import rank_of, rank_of_scheduler
from sglang_hooks.hooks.parking import ABORTED, ParkingHooks, name_cause, name_life_cause
from sglang_hooks.hooks.pipeline import PipelineHooks
from sglang_hooks.hooks.sender import end_dropped, life_of, nothing_was_sent
from sglang_hooks.lives import Life


class SchedulerHooks:
    def __init__(self, parts: EngineParts, pipeline: PipelineHooks, parking: ParkingHooks) -> None:
        self._parts = parts
        self._pipeline = pipeline
        self._parking = parking
        self._inflight_of: Any = None

    # -- abort_request

    def around_abort_request(self, original: Callable[..., None], scheduler: Any, recv_req: Any) -> None:
        waiting = self._waiting_matches(scheduler, recv_req)
        self._name_cause(scheduler, recv_req)
        original(scheduler, recv_req)
        self._end_dropped(scheduler, waiting, recv_req)
        self._end_unsent_running(scheduler, recv_req)

    @contained(otherwise=())
    def _waiting_matches(self, scheduler: Any, recv_req: Any) -> tuple[Any, ...]:
        if rank_of_scheduler(scheduler) is None:
            return ()
        return tuple(req for req in scheduler.waiting_queue if _matches(req, recv_req))

    @contained(otherwise=None)
    def _name_cause(self, scheduler: Any, recv_req: Any) -> None:
        """Stock's queues for transfers call every abort a client's, and from 0.5.21 the waiting queue does too."""
        said = _said(recv_req)
        if said[0] == ABORTED or rank_of_scheduler(scheduler) is None:
            return
        bootstrapping, inflight = (
            scheduler.disagg_prefill_bootstrap_queue.queue,
            scheduler.disagg_prefill_inflight_queue,
        )
        for req in (*scheduler.waiting_queue, *bootstrapping, *inflight):
            if _matches(req, recv_req):
                name_life_cause(req, *said)

    @contained(otherwise=None)
    def _end_dropped(self, scheduler: Any, waiting: Iterable[Any], recv_req: Any) -> None:
        """Stock has answered these clients and dropped the requests; up to 0.5.20 it leaves bootstrapped senders as
        they were."""
        if waiting:
            end_dropped(waiting, scheduler, *_said(recv_req))

    @contained(otherwise=None)
    def _end_unsent_running(self, scheduler: Any, recv_req: Any) -> None:
        """A running request of which nothing was sent yet: its sender is ended now, so that its KV cannot leave
        after decode was told. Stock 0.5.18 only sets `to_finish`, computes on, and sends."""
        rank = rank_of_scheduler(scheduler)
        if rank is None:
            return
        inflight = {id(req) for req in scheduler.disagg_prefill_inflight_queue}
        for req in self._running(scheduler):
            sender: Any = getattr(req, "disagg_kv_sender", None)
            life = life_of(sender)
            if life is None or not _matches(req, recv_req) or not self._parking.is_to_be_aborted(req):
                continue
            if req is not scheduler.chunked_req and id(req) not in inflight and nothing_was_sent(sender, life):
                name_cause(req, req.to_finish)
                sender.abort()

    def _running(self, scheduler: Any) -> Iterable[Any]:
        """The requests of the batches that `Scheduler.abort_request` looks into."""
        if self._parts.collect_running is not None:
            return self._parts.collect_running(scheduler)
        if scheduler.ps.pp_size == 1:
            batches = [scheduler.running_batch, scheduler.last_batch]
        else:
            batches = [*scheduler.running_mbs, *scheduler.mbs]
        return {id(req): req for batch in batches if batch is not None for req in batch.reqs}.values()

    # -- send_kv_chunk

    def around_send_chunk(
        self,
        original: Callable[..., None],
        scheduler: Any,
        req: Any,
        last_chunk: bool = False,
        end_idx: int | None = None,
    ) -> None:
        """Every last chunk is sent right after its request has entered the inflight queue, so one that is to be
        aborted, or whose sender has been, waits for its end there and sends nothing."""
        if not (last_chunk and self._ends_here(scheduler, req)):
            original(scheduler, req, last_chunk=last_chunk, end_idx=end_idx)

    @contained(otherwise=False)
    def _ends_here(self, scheduler: Any, req: Any) -> bool:
        life = life_of(getattr(req, "disagg_kv_sender", None))
        to_be_aborted = self._parking.is_to_be_aborted(req)
        if life is None or not (to_be_aborted or life.ending):
            return False
        if to_be_aborted:
            name_cause(req, req.to_finish)
            self._parking.take_finish_reason(req)
            req.disagg_kv_sender.abort()
        self._parts.clear_pending_chunk_send(scheduler, req)
        return True

    # -- the inflight queue's polls

    def around_inflight(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """For `process_disagg_prefill_inflight_queue` and the pipeline's `_pp_pd_get_prefill_transferred_ids`: polls
        made inside are about the inflight queue."""
        self._inflight_of = scheduler
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._inflight_of = None

    def around_poll_reduce(
        self, original: Callable[..., list[int]], pollers: Any, *args: Any, **kwargs: Any
    ) -> list[int]:
        if self._inflight_of is None:
            return self._pipeline.agreed(original(pollers, *args, **kwargs))
        lives = self._lives_in_flight(pollers)
        if lives is None:
            return original(pollers, *args, **kwargs)
        reduced = original(self._with_ending(pollers, lives), *args, **kwargs)
        return self._settled(pollers, lives, reduced)

    @contained(otherwise=None)
    def _lives_in_flight(self, pollers: Any) -> list[Life | None] | None:
        """For each poller the life that the agreement is about; None for those that stock handles: no life, or
        bootstrap pending, when nothing was sent and Failed may pass as it is."""
        queue = self._inflight_of.disagg_prefill_inflight_queue
        if len(queue) != len(pollers):
            return None
        return [None if req.pending_bootstrap else life_of(sender) for req, sender in zip(queue, pollers, strict=True)]

    def _with_ending(self, pollers: Any, lives: list[Life | None]) -> list[Any]:
        return [self._ending(sender, life) or sender for sender, life in zip(pollers, lives, strict=True)]

    @contained(otherwise=None)
    def _ending(self, sender: Any, life: Life | None) -> EndingPoller | None:
        if life is None or not life.ending:
            return None
        rank = rank_of(sender.kv_mgr)
        return None if rank is None else EndingPoller(rank, life)

    def _settled(self, pollers: Any, lives: list[Life | None], reduced: list[int]) -> list[int]:
        answers = (self._settle(*each) for each in zip(pollers, lives, reduced, strict=True))
        return [poll if answer is None else answer for answer, poll in zip(answers, reduced, strict=True)]

    @contained(otherwise=None)
    def _settle(self, sender: Any, life: Life | None, reduced: int) -> int:
        if life is None:
            return reduced
        if life.ending:
            return settle_verdict(life, reduced)
        if reduced == FAILED:
            return self._begin_failed(sender, life)
        return reduced

    def _begin_failed(self, sender: Any, life: Life) -> int:
        """One rank at least met a failure (a transfer error, decode's abort): every rank begins to end the life in
        this round.

        A rank that is alone has nobody to wait for and may see the end at once.
        """
        manager = sender.kv_mgr
        rank = rank_of(manager)
        if rank is None:
            return FAILED
        rank.begin_end(
            life, manager.failure_records.get(life.room, "the transfer failed on another rank"), causes.SERVER_ERROR
        )
        if not life.succeeded:
            manager.update_status(life.room, FAILED)  # what is queued is skipped by the workers
        if manager.attn_tp_size == 1 and manager.attn_cp_size == 1:
            return settle_verdict(life, EndingPoller(rank, life).poll())
        return settle_verdict(life, FAILED)

    # -- get_internal_state

    def after_internal_state(self, result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        self._report(result, scheduler)

    @contained(otherwise=None)
    def _report(self, result: Any, scheduler: Any) -> None:
        rank = rank_of_scheduler(scheduler)
        if rank is not None:
            result.internal_state["pd_sidecar"] = rank.report()


def _matches(req: Any, recv_req: Any) -> bool:
    """As `Scheduler.abort_request` does: by prefix."""
    return bool(recv_req.abort_all or req.rid.startswith(recv_req.rid))


def _said(recv_req: Any) -> tuple[str, int]:
    """Why the engine itself aborts (from 0.5.20, a timeout); a client's abort says nothing."""
    reason = getattr(recv_req, "finished_reason", None) or {}
    message = reason.get("message") or getattr(recv_req, "abort_message", None)
    return (message, causes.UNAVAILABLE) if message else (ABORTED, causes.CLIENT_CLOSED_REQUEST)
