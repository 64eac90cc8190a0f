"""In place of sglang's batch scheduling and of the model: one request at a time, in order of arrival, in chunks.

Bookkeeping of chunks and of pages as `Scheduler.get_new_batch_prefill`, `PrefillAdder.add_chunked_req` and
`alloc_for_extend` leave it.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.utils.common import Range

from tests.engine.ranks.spec import kv_byte


class Silent:
    """Takes the place of metrics, statistics and sessions."""

    enable_metrics = False

    def __getattr__(self, _name: str) -> "Silent":
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> "Silent":
        return self


@dataclass
class Batch:
    """The part of `ScheduleBatch` that the prefill loops touch."""

    reqs: list[Any] = field(default_factory=list)
    chunked_req: Any = None
    batch_is_full: bool = False
    spec_info: Any = None
    prefill_stats: Any = None
    dp_cooperation_info: Any = None
    forward_mode: Any = field(default_factory=lambda: SimpleNamespace(is_extend=lambda: True))

    def batch_size(self) -> int:
        return len(self.reqs)

    def filter_batch(self, *, chunked_req_to_exclude: list[Any]) -> None:
        self.reqs = [req for req in self.reqs if req not in chunked_req_to_exclude]

    def copy(self) -> "Batch":
        return Batch(list(self.reqs), self.chunked_req)


class Planner:
    def __init__(self, scheduler: Any, kv: Any, *, place: int, chunk: int) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._place = place
        self._chunk = chunk

    def empty_batch(self) -> Batch:
        return Batch()

    def plan(self, running_batch: Batch) -> Any:
        scheduler = self._scheduler
        req = scheduler.chunked_req or next(iter(scheduler.waiting_queue), None)
        if req is None:
            return SimpleNamespace(batch_to_run=None, running_batch=running_batch)
        begin = req.extend_range.end if req.extend_range is not None else 0
        end = min(begin + self._chunk, len(req.origin_input_ids))
        if scheduler.token_to_kv_pool_allocator.available_size() < end - begin:
            return SimpleNamespace(batch_to_run=None, running_batch=running_batch)
        scheduler.waiting_queue = [each for each in scheduler.waiting_queue if each is not req]
        req.extend_range = Range(begin, end)
        scheduler.chunked_req = req if end < len(req.origin_input_ids) else None
        if scheduler.chunked_req is not None:
            req.inflight_middle_chunks += 1
        self._allocate(req, begin, end)
        return SimpleNamespace(batch_to_run=Batch([req], scheduler.chunked_req), running_batch=running_batch)

    def _allocate(self, req: Any, begin: int, end: int) -> None:
        pages = self._scheduler.token_to_kv_pool_allocator.alloc(end - begin)
        if req.req_pool_idx is None:
            self._scheduler.req_to_token_pool.alloc([req])
        self._scheduler.req_to_token_pool.write((req.req_pool_idx, slice(begin, end)), pages.to(torch.int32))
        req.kv_committed_len = end
        if req.kv is None:
            req.kv = ReqKvInfo(kv_allocated_len=end, swa_evicted_seqlen=0)
        req.kv.kv_allocated_len = end

    def forward(self, batch: Batch) -> Any:
        for req in batch.reqs:
            begin, end = req.extend_range
            pages = self._scheduler.req_to_token_pool.req_to_token[req.req_pool_idx, begin:end]
            for position, page in zip(range(begin, end), pages.tolist(), strict=True):
                for buffer in (self._kv.k_buffer[0], self._kv.v_buffer[0]):
                    buffer.view(torch.uint8)[page] = kv_byte(req.rid, position, self._place)
        return SimpleNamespace(
            logits_output=None,
            next_token_ids=torch.tensor([1] * len(batch.reqs)),
            extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None,
            copy_done=None,
            routed_experts_output=None,
            indexer_topk_output=None,
            next_draft_input=None,
            can_run_cuda_graph=False,
        )
