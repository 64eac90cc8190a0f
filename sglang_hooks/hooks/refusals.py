"""Hooks on sglang's `Scheduler` in the prefill role: requests that it refuses before they have a sender.

Nobody but the rank's own scheduler knows of these, and all ranks of a request refuse it alike: more tokens than the KV
pool holds, a priority where none is taken, and from 0.5.21 every input error (`retire_unadmitted_request`). Before that
an input error becomes a one-token stub which does get a sender; `SchedulerHooks.around_send_chunk` ends that one.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

from sglang_hooks import causes
from sglang_hooks.contain import contained
from sglang_hooks.hooks.manager import rank_of_scheduler
from sglang_hooks.hooks.sender import end_and_purge, end_dropped, life_of
from sglang_hooks.hooks.traces import note_trace
from sidecar.model import ROOM_LIMIT

WAITED_TOO_LONG = "Request waiting timeout reached."
"""As sglang words it."""


class RefusalHooks:
    def __init__(self) -> None:
        self._judged: Any = None  # the room of the request that has come to its queue, or was refused there
        self._reason: Any = None

    def around_hooks(self) -> dict[str, Callable[..., Any]]:
        return {
            "arrival": self.around_arrival,
            "queueing": self.around_queueing,
            "waiting_timeout": self.around_waiting_timeout,
        }

    # -- handle_generate_request

    def around_arrival(
        self, original: Callable[..., None], scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._judged = self._reason = None
        original(scheduler, recv_req, *args, **kwargs)
        self._end_unqueued(scheduler, recv_req)

    @contained(otherwise=None)
    def _end_unqueued(self, scheduler: Any, recv_req: Any) -> None:
        """Answered without coming to the queue, or coming there without its room (a session that does not exist)."""
        room, rank = recv_req.bootstrap_room, rank_of_scheduler(scheduler)
        if rank is None or room == self._judged or not is_room(room):
            return
        if any(req.rid == recv_req.rid for req in scheduler.grammar_manager.grammar_queue):
            return
        rank.refuse(room, *_said(self._reason))

    # -- _add_request_to_queue

    def around_queueing(
        self, original: Callable[..., None], scheduler: Any, req: Any, *args: Any, **kwargs: Any
    ) -> None:
        note_trace(scheduler, req)
        original(scheduler, req, *args, **kwargs)
        self._end_refused(scheduler, req)

    @contained(otherwise=None)
    def _end_refused(self, scheduler: Any, req: Any) -> None:
        rank = rank_of_scheduler(scheduler)
        if rank is None:
            return
        self._judged, self._reason = req.bootstrap_room, req.finished_reason or req.to_finish
        queue = scheduler.disagg_prefill_bootstrap_queue.queue
        if not is_room(req.bootstrap_room) or (queue and queue[-1] is req):
            return
        cause, http_status = _said(self._reason)
        if life_of(req.disagg_kv_sender) is not None:
            end_and_purge(req.disagg_kv_sender, cause, http_status)  # it had come in before, and was put back
        else:
            rank.refuse(req.bootstrap_room, cause, http_status)

    # -- _abort_on_waiting_timeout

    def around_waiting_timeout(self, original: Callable[..., None], scheduler: Any) -> None:
        waiting = self._waiting(scheduler)
        original(scheduler)
        self._end_dropped(scheduler, waiting)

    @contained(otherwise=())
    def _waiting(self, scheduler: Any) -> tuple[Any, ...]:
        return () if rank_of_scheduler(scheduler) is None else tuple(scheduler.waiting_queue)

    @contained(otherwise=None)
    def _end_dropped(self, scheduler: Any, waiting: tuple[Any, ...]) -> None:
        if len(waiting) != len(scheduler.waiting_queue):
            end_dropped(waiting, scheduler, WAITED_TOO_LONG, causes.UNAVAILABLE)


def is_room(room: Any) -> TypeGuard[int]:
    return isinstance(room, int) and 0 <= room < ROOM_LIMIT


def _said(reason: Any) -> tuple[str, int]:
    """What a `FINISH_ABORT` says. Without one the request was refused for its priority, which sglang says to its client
    alone."""
    if reason is None:
        return causes.REFUSED, causes.UNAVAILABLE
    return str(reason.message), int(reason.status_code or 0)
