"""A look into a scheduler: `pd_tables` in its part of GET /server_info, and an event from every rank that was asked."""

from typing import Any

from sglang.srt.disaggregation.common import conn
from sglang.srt.managers.scheduler import Scheduler

from pd_sidecar_shim.journal import note
from pd_sidecar_shim.patching import wrap

PREFILL_TABLES = ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len")
DECODE_TABLES = ("request_status", "failure_records", "required_prefill_response_num_table", "prefill_response_tracker")


def apply() -> None:
    wrap(Scheduler, "get_internal_state", _get_internal_state)


def _get_internal_state(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    answer = original(scheduler, *args, **kwargs)
    tables = _look(scheduler)
    note("tables", **tables)
    answer.internal_state["pd_tables"] = tables
    return answer


def _look(scheduler: Any) -> dict[str, Any]:
    mode = scheduler.disaggregation_mode.value
    ranks = getattr(scheduler, "ps", None) or conn.get_parallel()  # since 0.5.21 they belong to the process
    tables = {"mode": mode, "tp_rank": ranks.tp_rank, "pp_rank": ranks.pp_rank} | _pools(scheduler)
    if mode == "prefill":
        return tables | _prefill(scheduler)
    if mode == "decode":
        return tables | _decode(scheduler)
    return tables


def _pools(scheduler: Any) -> dict[str, Any]:
    slots = scheduler.req_to_metadata_buffer_idx_allocator
    return {
        "waiting": len(scheduler.waiting_queue),
        "running": len(scheduler.running_batch.reqs),
        "metadata_free": slots.available_size(),
        "metadata_total": slots.size,
        "kv_available": int(scheduler.token_to_kv_pool_allocator.available_size()),
        "kv_evictable": int(scheduler.tree_cache.evictable_size()),
        "kv_protected": int(scheduler.tree_cache.protected_size()),
        "kv_total": int(scheduler.max_total_num_tokens),
        "req_slots_free": int(scheduler.req_to_token_pool.available_size()),
    }


def _prefill(scheduler: Any) -> dict[str, Any]:
    manager = scheduler.disagg_prefill_bootstrap_queue.kv_manager
    plugin = manager.__dict__.get("_pd_sidecar_rank")
    return _rooms(manager, PREFILL_TABLES) | {
        "plugin": None if plugin is None else plugin.report(),
        "bootstrap": len(scheduler.disagg_prefill_bootstrap_queue.queue),
        "inflight": len(scheduler.disagg_prefill_inflight_queue),
        "chunked": scheduler.chunked_req is not None,
        "pending_chunks": len(scheduler.disagg_prefill_pending_chunk_rids),
    }


def _decode(scheduler: Any) -> dict[str, Any]:
    manager = scheduler.disagg_decode_prealloc_queue.kv_manager
    return _rooms(manager, DECODE_TABLES) | {
        "prealloc": len(scheduler.disagg_decode_prealloc_queue.queue),
        "transfer": len(scheduler.disagg_decode_transfer_queue.queue),
    }


def _rooms(manager: Any, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {name: _plain_table(getattr(manager, name, {})) for name in names}


def _plain_table(table: Any) -> dict[str, Any]:
    """Since 0.5.22 a pipeline's statuses are in a store that cannot be listed; what it keeps of its own rank can."""
    own = getattr(table, "_local_map", table)
    return {str(room): _plain(entry) for room, entry in list(own.items())}


def _plain(entry: Any) -> Any:
    """Statuses as numbers, reasons as text, collections by their size."""
    if isinstance(entry, str):
        return entry
    return len(entry) if hasattr(entry, "__len__") else int(entry)
