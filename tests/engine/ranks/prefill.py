"""One prefill rank's real manager, pools and scheduler, as `Scheduler.init_disaggregation` leaves them."""

import os
from collections import deque
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from sglang.srt.disaggregation.base.conn import KVArgs
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
from sglang.srt.disaggregation.utils import DisaggregationMode, ReqToMetadataIdxAllocator, TransferBackend
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

from tests.engine.ranks.batches import Planner, Silent
from tests.engine.ranks.spec import HEAD_BYTES, PAGES, SLOTS, Place, RankSpec
from tests.engine.ranks.transfers import Engine

CONN = "sglang.srt.disaggregation.common.conn"
MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"


def pretend_configuration(place: Place, engine: Engine) -> None:
    """What sglang reads from its published configuration and from the machine, for the life of the process."""
    parallel = SimpleNamespace(
        attn_tp_size=place.layout.tp,
        attn_tp_rank=place.tp,
        attn_cp_size=place.layout.cp,
        attn_cp_rank=place.cp,
        attn_dcp_size=1,
        attn_dcp_rank=0,
        dp_size=place.layout.dp,
        enable_dp_attention=place.layout.dp > 1,
        nnodes=1,
        enable_dsa_cache_layer_split=False,
        load_balance_method="round_robin",
    )
    serving = SimpleNamespace(port=1, strip_thinking_cache=False)
    pretended = {
        f"{CONN}.get_parallel": lambda: parallel,
        f"{CONN}.get_attention_dp_size": lambda: place.layout.dp,
        f"{CONN}.get_attention_dp_rank": lambda: place.dp,
        f"{CONN}.get_local_ip_auto": lambda: "127.0.0.1",
        f"{CONN}.get_pp_group": lambda: None,
        f"{CONN}.CommonKVManager.register_to_bootstrap": lambda _manager: None,
        f"{CONN}.CommonKVSender._register_prefill_dp_rank": lambda _sender: None,
        "sglang_hooks.emitter.Emitter.start": lambda _emitter: None,  # the test is the sidecar
        f"{MOONCAKE}.get_parallel": lambda: parallel,
        f"{MOONCAKE}.get_memory": lambda: SimpleNamespace(enable_unified_memory=False),
        f"{MOONCAKE}.get_mooncake_transfer_engine": lambda: engine,
        "sglang.srt.mem_cache.common.get_serving": lambda: serving,
        "sglang.srt.mem_cache.common.get_spec": lambda: SimpleNamespace(speculative_algorithm=None),
        "sglang.srt.managers.schedule_batch.get_serving": lambda: serving,
        "sglang.srt.managers.scheduler.get_mm": lambda: SimpleNamespace(mm_feature_transport=""),
    }
    if place.layout.all_cp:
        os.environ["SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER"] = "1"
    stack = ExitStack()
    for target, value in pretended.items():
        stack.enter_context(mock.patch(target, value))
    stack.pop_all()


class Pools:
    """Real KV memory of one layer, real allocators, no prefix cache."""

    def __init__(self) -> None:
        heads = HEAD_BYTES // 2  # float16
        self.kv = MHATokenToKVPool(PAGES, 1, torch.float16, 1, heads, 1, "cpu", False)
        self.requests = ReqToTokenPool(SLOTS, PAGES, "cpu", False)
        self.pages = TokenToKVPoolAllocator(PAGES, torch.float16, "cpu", self.kv, False)
        self.slots = ReqToMetadataIdxAllocator(SLOTS)
        self.cache = ChunkCache(
            CacheInitParams(
                disable=True,
                req_to_token_pool=self.requests,
                token_to_kv_pool_allocator=self.pages,
                page_size=1,
            )
        )

    def kv_args(self, place: Place) -> KVArgs:
        args = KVArgs()
        pointers, lengths, items = self.kv.get_contiguous_buf_infos()
        vars(args).update(
            engine_rank=place.tp,
            kv_data_ptrs=pointers,
            kv_data_lens=lengths,
            kv_item_lens=items,
            kv_layer_ids=[],
            kv_cache_dtype_str="float16",
            aux_data_ptrs=[],
            aux_data_lens=[],
            aux_item_lens=[],
            state_types=[],
            state_data_ptrs=[],
            state_data_lens=[],
            state_item_lens=[],
            state_layer_ids=[],
            page_size=1,
            system_dp_rank=place.dp,
            pp_rank=0,
            prefill_start_layer=0,
            prefill_end_layer=1,
            mla_compression_ratios=None,
        )
        return args


def make_manager(pools: Pools, place: Place) -> Any:
    """Through its real `__init__`, so that the plugin meets it as in an engine."""
    server_args = SimpleNamespace(
        host="127.0.0.1", disaggregation_bootstrap_port=1, dist_init_addr=None, pp_size=1, enable_trace=False
    )
    return MooncakeKVManager(pools.kv_args(place), DisaggregationMode.PREFILL, server_args)


def make_scheduler(spec: RankSpec, pools: Pools, manager: Any, groups: dict[str, dist.ProcessGroup]) -> Any:
    """`Scheduler` with what its prefill event loops touch. `answers` gathers what the client is told."""
    scheduler = Scheduler.__new__(Scheduler)
    place = spec.layout.place(spec.number)
    answers: list[tuple[str, str, str]] = []
    planner = Planner(scheduler, pools.kv, place=spec.number, chunk=spec.chunk)
    vars(scheduler).update(
        answers=answers,
        disaggregation_mode=DisaggregationMode.PREFILL,
        server_args=SimpleNamespace(optimistic_prefill_attempts=spec.optimistic),
        ps=SimpleNamespace(pp_size=1, pp_rank=0, tp_rank=place.tp, dp_rank=place.dp),
        enable_hicache_storage=False,
        enable_overlap=spec.overlap,
        enable_staging=False,
        dllm_config=None,
        rust_server=None,
        external_corpus_manager=None,
        _engine_paused=False,
        chunked_req=None,
        _pending_chunked_abort_req=None,
        waiting_queue=[],
        running_batch=planner.empty_batch(),
        last_batch=None,
        tree_cache=pools.cache,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.pages,
        req_to_metadata_buffer_idx_allocator=pools.slots,
        disagg_metadata_buffers=SimpleNamespace(set_buf=lambda _req: None),
        disagg_prefill_inflight_queue=[],
        disagg_prefill_pending_chunk_rids=set(),
        attn_tp_cpu_group=groups["attn_tp"],
        attn_cp_cpu_group=groups["attn_cp"],
        result_queue=deque(),
        spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
        metrics_reporter=Silent(),
        batch_result_processor=Silent(),
        grammar_manager=Silent(),
        session_controller=Silent(),
        flush_wrapper=Silent(),
        dp_attn_adapter=SimpleNamespace(maybe_prepare_mlp_sync_batch=lambda batch: batch),
        ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, **_: batch),
        ipc_channels=SimpleNamespace(
            send_to_tokenizer=SimpleNamespace(
                send_output=lambda output, req: answers.append((req.rid, type(output).__name__, ""))
            )
        ),
        output_streamer=SimpleNamespace(
            stream_output=lambda reqs, *_: answers.extend(
                (req.rid, type(req.finished_reason).__name__, getattr(req.finished_reason, "message", ""))
                for req in reqs
            )
        ),
        get_new_batch_prefill=planner.plan,
        run_batch=planner.forward,
        process_batch_result=scheduler.process_batch_result_disagg_prefill,
        on_idle=lambda: None,
        _apply_war_barrier=lambda: None,
        launch_batch_sample_if_needed=lambda *_: None,
    )
    scheduler.disagg_prefill_bootstrap_queue = _make_bootstrap_queue(scheduler, pools, manager, place)
    return scheduler


def _make_bootstrap_queue(scheduler: Any, pools: Pools, manager: Any, place: Place) -> Any:
    queue = PrefillBootstrapQueue.__new__(PrefillBootstrapQueue)
    vars(queue).update(
        scheduler=scheduler,
        kv_manager=manager,
        queue=[],
        tp_rank=place.tp,
        pp_rank=0,
        pp_size=1,
        bootstrap_port=1,
        max_total_num_tokens=PAGES,
        transfer_backend=TransferBackend.MOONCAKE,
        req_to_metadata_buffer_idx_allocator=pools.slots,
    )
    return queue
