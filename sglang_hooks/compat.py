"""The parts of sglang that the plugin hooks or calls, and whether this sglang has them.

Detected by what is there, never by a version string. If any needed point is missing or takes other parameters, the
plugin stands down as a whole: half a set of hooks could free pages under a writer.
"""

import inspect
import multiprocessing
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMMON = "sglang.srt.disaggregation.common"
PREFILL = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
BOOTSTRAP_QUEUE = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
PIPELINE = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

FOUND = "found"


@dataclass(frozen=True, slots=True)
class HookPoint:
    """`parameters` are the leading ones that a hook body relies on, `self` included."""

    name: str
    target: str
    parameters: tuple[str, ...]


HOOK_POINTS = (
    HookPoint("manager_init", f"{COMMON}.conn.CommonKVManager.__init__", ("self", "args", "disaggregation_mode")),
    HookPoint("update_status", f"{COMMON}.conn.CommonKVManager.update_status", ("self", "bootstrap_room", "status")),
    HookPoint(
        "record_failure", f"{COMMON}.conn.CommonKVManager.record_failure", ("self", "bootstrap_room", "failure_reason")
    ),
    HookPoint(
        "worker_status",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.sync_status_to_decode_endpoint",
        ("self", "remote", "dst_port", "room", "status", "prefill_rank"),
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
    HookPoint("chunked_abort", f"{SCHEDULER}.process_pending_chunked_abort", ("self",)),
    HookPoint("internal_state", f"{SCHEDULER}.get_internal_state", ("self", "recv_req")),
    HookPoint("send_chunk", f"{PREFILL}.send_kv_chunk", ("self", "req", "last_chunk", "end_idx")),
    HookPoint("inflight", f"{PREFILL}.process_disagg_prefill_inflight_queue", ("self", "rids_to_check")),
    HookPoint("prefill_chunk", f"{PREFILL}.process_prefill_chunk", ("self", "last_batch", "running_batch")),
    HookPoint("pop_bootstrapped", f"{BOOTSTRAP_QUEUE}.pop_bootstrapped", ("self", "return_failed_reqs")),
    HookPoint("pp_transferred", f"{PIPELINE}._pp_pd_get_prefill_transferred_ids", ("self",)),
)

ENGINE_PARTS = {
    "prepare_abort": "sglang.srt.disaggregation.utils.prepare_abort",
    "finish_abort": "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    "mooncake_manager": "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager",
    "version": "sglang.__version__",
}


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What hook bodies call or compare with, resolved once."""

    prepare_abort: Callable[..., None]
    finish_abort: type
    mooncake_manager: type
    version: str


@dataclass(frozen=True, slots=True)
class Findings:
    """`verdicts` by the name of the hook point or part: "found", or what is wrong."""

    verdicts: dict[str, str]
    parts: EngineParts | None

    @property
    def missing(self) -> dict[str, str]:
        return {name: verdict for name, verdict in self.verdicts.items() if verdict != FOUND}


def survey() -> Findings:
    """Looks at the installed sglang. Imports the modules of all hook points."""
    verdicts = {point.name: verdict_of(point) for point in all_points()}
    parts: dict[str, Any] = {}
    for name, target in ENGINE_PARTS.items():
        found = _resolve(target)
        verdicts[name] = f"{target} is missing" if found is None else FOUND
        parts[name] = found
    complete = all(verdict == FOUND for verdict in verdicts.values())
    return Findings(verdicts, EngineParts(**parts) if complete else None)


def all_points() -> tuple[HookPoint, ...]:
    """Those that every supported sglang has, and of the others those that are there. The tokenizer's only in a main
    process: a rank would import its modules for nothing."""
    from sglang_hooks.hooks.refusals import REFUSAL_POINTS, WAITING_TIMEOUT  # noqa: PLC0415 - they build on this module
    from sglang_hooks.hooks.tokenizer import TOKENIZER_POINTS  # noqa: PLC0415

    found = tuple(point for point in (WAITING_TIMEOUT,) if verdict_of(point) == FOUND)
    of_main = TOKENIZER_POINTS if multiprocessing.parent_process() is None else ()
    return (*HOOK_POINTS, *REFUSAL_POINTS, *of_main, *found)


def verdict_of(point: HookPoint) -> str:
    function = _resolve(point.target)
    if function is None:
        return f"{point.target} is missing"
    if not callable(function):
        return f"{point.target} is not callable"
    parameters = tuple(inspect.signature(function).parameters)
    if parameters[: len(point.parameters)] != point.parameters:
        return f"{point.target} takes ({', '.join(parameters)}), expected to begin with ({', '.join(point.parameters)})"
    return FOUND


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return None
