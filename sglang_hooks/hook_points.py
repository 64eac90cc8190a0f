"""Where the plugin takes hold of sglang: one table for 0.5.18 to 0.5.23.

What sglang has moved or renamed in between has a row for each place; the rows of one purpose stand together, and one of
them has to be there.
"""

from dataclasses import dataclass

COMMON = "sglang.srt.disaggregation.common"
MOONCAKE = "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager"
PREFILL = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
BOOTSTRAP_QUEUE = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
PIPELINE = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


@dataclass(frozen=True, slots=True)
class HookPoint:
    """`parameters` are the leading ones that a hook body relies on, `self` included. `purpose`: what it serves, if not
    it alone.

    `known`: the names that the function may use, where a hook takes its place: with another one, it does something
    that the hook does not. `without`: a name that it must not use; such a row is looked at and not hooked. `of_main`:
    in the server's main process only; a rank would import its module for nothing. `optional`: without it the plugin
    does all but what it serves.
    """

    name: str
    target: str
    parameters: tuple[str, ...]
    purpose: str = ""
    known: frozenset[str] = frozenset()
    without: str = ""
    of_main: bool = False
    optional: bool = False

    @property
    def serves(self) -> str:
        return self.purpose or self.name


# fmt: off
CHUNKED_ABORT_USES = frozenset((
    "AbortReq", "DisaggregationMode", "FINISH_ABORT", "PREFILL", "_make_abort_req", "_pending_chunked_abort_req",
    "_release_aborted_request", "abort", "abort_request", "chunked_req", "clear_pending_chunk_send", "debug",
    "disagg_kv_sender", "disaggregation_mode", "discard_output_reason", "enable_hicache_storage", "finished",
    "holds_kv", "ipc_channels", "kv", "logger", "maybe_release_metadata_buffer", "message", "pending_bootstrap",
    "prepare_abort", "release_aborted_request", "release_kv_cache", "req_pool_idx",
    "req_to_metadata_buffer_idx_allocator", "rid", "send_abort_output", "send_output", "send_to_tokenizer",
    "status_code", "time_stats", "to_finish", "to_json", "trace_ctx", "tree_cache",
))

ABORTED_RESULT_USES = frozenset((
    "ABORT", "CacheRequestOutcome", "Exception", "abort", "cache_request_handle", "clear_pending_chunk_send",
    "disagg_kv_sender", "enable_hicache_storage", "exception", "finish", "finished", "holds_kv", "holds_mamba", "kv",
    "logger", "maybe_release_metadata_buffer", "metadata_buffer_index", "pending_bootstrap", "release_kv_cache",
    "req_to_metadata_buffer_idx_allocator", "rid", "to_finish", "tree_cache", "update_finish_state",
))
# fmt: on

HOOK_POINTS = (
    HookPoint("manager_init", f"{COMMON}.conn.CommonKVManager.__init__", ("self", "args", "disaggregation_mode")),
    HookPoint("update_status", f"{COMMON}.conn.CommonKVManager.update_status", ("self", "bootstrap_room", "status")),
    HookPoint(
        "record_failure", f"{COMMON}.conn.CommonKVManager.record_failure", ("self", "bootstrap_room", "failure_reason")
    ),
    # 0.5.18, 0.5.19
    HookPoint(
        "worker_status",
        f"{MOONCAKE}.sync_status_to_decode_endpoint",
        ("self", "remote", "dst_port", "room", "status", "prefill_rank"),
        purpose="word_of_a_worker",
    ),
    # from 0.5.20
    HookPoint(
        "status_message",
        f"{COMMON}.conn.CommonKVManager.send_kv_status_message",
        ("self", "targets", "bootstrap_room", "status"),
        purpose="word_of_a_worker",
    ),
    # taken the place of with PD_SIDECAR_PUSH=all
    HookPoint(
        "send_multipart",
        f"{COMMON}.conn.CommonKVManager._send_multipart_locked",
        ("self", "endpoint", "parts", "is_ipv6"),
        known=frozenset(("_connect", "_socket_send_locks", "send_multipart")),
        optional=True,
    ),
    HookPoint(
        "sender_init", f"{COMMON}.conn.CommonKVSender.__init__", ("self", "mgr", "bootstrap_addr", "bootstrap_room")
    ),
    HookPoint("sender_abort", f"{COMMON}.conn.CommonKVSender.abort", ("self",)),
    HookPoint("sender_clear", f"{COMMON}.conn.CommonKVSender.clear", ("self",)),
    HookPoint("queue_put", f"{COMMON}.utils.FastQueue.put", ("self", "item")),
    HookPoint("queue_get", f"{COMMON}.utils.FastQueue.get", ("self",)),
    HookPoint(
        "poll_reduce",
        "sglang.srt.disaggregation.utils.poll_and_all_reduce_attn_cp_tp_group",
        ("pollers", "attn_cp_cpu_group"),
    ),
    HookPoint("abort_request", f"{SCHEDULER}.abort_request", ("self", "recv_req")),
    HookPoint("chunked_abort", f"{SCHEDULER}.process_pending_chunked_abort", ("self",), known=CHUNKED_ABORT_USES),
    HookPoint("internal_state", f"{SCHEDULER}.get_internal_state", ("self", "recv_req")),
    HookPoint("send_chunk", f"{PREFILL}.send_kv_chunk", ("self", "req", "last_chunk", "end_idx")),
    # 0.5.18, 0.5.19: the result of an aborted request is sent as any other
    HookPoint(
        "result_is_sent",
        f"{PREFILL}.process_batch_result_disagg_prefill",
        ("self", "batch", "result"),
        purpose="aborted_result",
        without="_retire_aborted_prefill_result",
    ),
    # from 0.5.20: it is let go of
    HookPoint(
        "result_is_retired",
        f"{PREFILL}._retire_aborted_prefill_result",
        ("self", "req"),
        purpose="aborted_result",
        known=ABORTED_RESULT_USES,
    ),
    HookPoint("inflight", f"{PREFILL}.process_disagg_prefill_inflight_queue", ("self", "rids_to_check")),
    HookPoint("prefill_chunk", f"{PREFILL}.process_prefill_chunk", ("self", "last_batch", "running_batch")),
    HookPoint("pop_bootstrapped", f"{BOOTSTRAP_QUEUE}.pop_bootstrapped", ("self",)),
    HookPoint("pp_transferred", f"{PIPELINE}._pp_pd_get_prefill_transferred_ids", ("self",)),
    HookPoint("arrival", f"{SCHEDULER}.handle_generate_request", ("self", "recv_req")),
    HookPoint("queueing", f"{SCHEDULER}._add_request_to_queue", ("self", "req", "is_retracted")),
    # 0.5.18, 0.5.19
    HookPoint(
        "waiting_timeout", f"{SCHEDULER}._abort_on_waiting_timeout", ("self",), purpose="request_that_waits_too_long"
    ),
    # from 0.5.20: it comes as an abort; looked at only
    HookPoint("timeout_aborts", f"{SCHEDULER}._poll_timeout_aborts", ("self",), purpose="request_that_waits_too_long"),
    HookPoint("tokenizer_init", f"{TOKENIZER}.__init__", ("self", "server_args", "port_args"), of_main=True),
    HookPoint("tokenizer_request", f"{TOKENIZER}.generate_request", ("self", "obj", "request"), of_main=True),
    HookPoint("tokenizer_dispatch", f"{TOKENIZER}._dispatch_to_scheduler", ("self", "obj"), of_main=True),
)

BACKENDS = {
    "sglang.srt.disaggregation.mooncake.conn": "mooncake",
    "sglang.srt.disaggregation.ascend.conn": "ascend",
    "sglang.srt.disaggregation.nixl.conn": "nixl",
    "sglang.srt.disaggregation.mori.conn": "mori",
}
"""By the module of the manager's class. A manager of another module is not served."""

UNPROVEN_AFTER_ERROR = frozenset({"nixl"})
"""Backends whose transfer worker may record a failure while a handle is still writing (`NixlKVManager.transfer_worker`:
up to 0.5.19 after any error, later when the handles did not settle in 5 s)."""
