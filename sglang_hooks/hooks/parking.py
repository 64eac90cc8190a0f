"""Hooks on sglang's `Scheduler`, prefill role: a request that ends after chunks of it were handed to transfer workers.

It waits in the engine's own inflight queue, with its pages and its metadata slot, until all ranks are quiet; the engine
then answers and releases once. Stock frees the pages at once, while they may still be read.
"""

from collections.abc import Callable
from typing import Any

from sglang_hooks import causes
from sglang_hooks.compat import EngineParts
from sglang_hooks.contain import contained
from sglang_hooks.hooks.manager import rank_of
from sglang_hooks.hooks.sender import drop_remains, life_of, nothing_was_sent
from sglang_hooks.lives import Life

ABORTED = "Aborted"
"""The message sglang answers a client's abort with (`FINISH_ABORT`)."""


class ParkingHooks:
    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts

    # -- process_pending_chunked_abort

    def around_chunked_abort(self, original: Callable[..., None], scheduler: Any) -> None:
        is_asked = getattr(scheduler, "_pending_chunked_abort_req", None) is not None
        req = self._chunked_to_end(scheduler) if is_asked else None
        if req is None:
            original(scheduler)
        elif self._is_unsent(req):
            original(scheduler)
            self._drop_unsent(req)
        elif not self._park_chunked(scheduler, req):
            original(scheduler)

    @contained(otherwise=None)
    def _chunked_to_end(self, scheduler: Any) -> Any:
        """The chunked request that stock is about to abort now, if it has a life."""
        req = scheduler._pending_chunked_abort_req  # noqa: SLF001 - sglang's own marker
        if req is None or scheduler.chunked_req is not req:
            return None
        return req if _has_life(req) else None

    def _park_chunked(self, scheduler: Any, req: Any) -> bool:
        """Answers whether the request is parked; if not, stock must abort it."""
        self._prepare_chunked(scheduler, req)
        if not isinstance(req.finished_reason, self._parts.finish_abort):
            return False
        scheduler.chunked_req = None
        scheduler._pending_chunked_abort_req = None  # noqa: SLF001 - sglang's own marker
        scheduler.disagg_prefill_inflight_queue.append(req)
        self._forget_prefetch(scheduler, req)
        return True

    @contained(otherwise=None)
    def _prepare_chunked(self, scheduler: Any, req: Any) -> None:
        """The state that `process_pending_chunked_abort` leaves, less the release and the answer. What makes the
        request parkable comes last."""
        discarded = getattr(req, "discard_output_reason", None)  # from 0.5.22: the engine itself gave it up
        message, status = (ABORTED, None) if discarded is None else (discarded.message, discarded.status_code)
        if discarded is not None:
            name_cause(req, discarded)
        req.time_stats.trace_ctx.abort(abort_info={"reason": message})
        self._stop_sending(scheduler, req)
        req.to_finish = None
        self._parts.prepare_abort(req, message, status)

    @contained(otherwise=None)
    def _forget_prefetch(self, scheduler: Any, req: Any) -> None:
        if self._parts.release_aborted is None and scheduler.enable_hicache_storage:
            scheduler.tree_cache.release_aborted_request(req.rid)

    # -- _retire_aborted_prefill_result, from 0.5.20

    def around_retire(self, original: Callable[..., bool], scheduler: Any, req: Any) -> bool:
        """The result of an aborted request's forward pass is here. Answers whether the engine is to answer now."""
        if self._is_parked(scheduler, req):
            return False
        if self._was_sent(req) and self._park_result(scheduler, req):
            return False
        retired = original(scheduler, req)
        self._drop_unsent(req)
        return retired

    @contained(otherwise=False)
    def _is_parked(self, scheduler: Any, req: Any) -> bool:
        return _has_life(req) and any(parked is req for parked in scheduler.disagg_prefill_inflight_queue)

    @contained(otherwise=False)
    def _was_sent(self, req: Any) -> bool:
        return _has_life(req) and not self._is_unsent(req)

    def _park_result(self, scheduler: Any, req: Any) -> bool:
        self._prepare_result(scheduler, req)
        if not isinstance(req.finished_reason, self._parts.finish_abort):
            return False
        scheduler.disagg_prefill_inflight_queue.append(req)
        return True

    @contained(otherwise=None)
    def _prepare_result(self, scheduler: Any, req: Any) -> None:
        self._stop_sending(scheduler, req)
        self.take_finish_reason(req)

    # -- common

    def is_to_be_aborted(self, req: Any) -> bool:
        return isinstance(req.to_finish, self._parts.finish_abort)

    def take_finish_reason(self, req: Any) -> None:
        """What was to end the request after its forward pass ends it now."""
        if self.is_to_be_aborted(req):
            reason = req.to_finish
            self._parts.prepare_abort(req, reason.message, reason.status_code)
            req.finished_reason = reason
            req.to_finish = None

    def _stop_sending(self, scheduler: Any, req: Any) -> None:
        self._parts.clear_pending_chunk_send(scheduler, req)
        if self.is_to_be_aborted(req):
            name_cause(req, req.to_finish)
        req.disagg_kv_sender.abort()
        req.pending_bootstrap = False
        req.skip_radix_cache_insert = True

    @contained(otherwise=False)
    def _is_unsent(self, req: Any) -> bool:
        life = life_of(req.disagg_kv_sender)
        return life is not None and nothing_was_sent(req.disagg_kv_sender, life)

    @contained(otherwise=None)
    def _drop_unsent(self, req: Any) -> None:
        life = _life(req)
        rank = rank_of(req.disagg_kv_sender.kv_mgr) if life is not None else None
        if life is not None and rank is not None:
            drop_remains(rank, req.disagg_kv_sender.kv_mgr, life)


def _life(req: Any) -> Life | None:
    return life_of(getattr(req, "disagg_kv_sender", None))


def _has_life(req: Any) -> bool:
    return _life(req) is not None


def name_cause(req: Any, reason: Any) -> None:
    """`reason`: sglang's `FINISH_ABORT`. Without a status it is a client's abort."""
    name_life_cause(req, reason.message, int(reason.status_code or causes.CLIENT_CLOSED_REQUEST))


def name_life_cause(req: Any, cause: str, http_status: int) -> None:
    sender: Any = getattr(req, "disagg_kv_sender", None)
    life = life_of(sender)
    rank = rank_of(sender.kv_mgr) if life is not None else None
    if life is not None and rank is not None:
        rank.name_cause(life, cause, http_status)
