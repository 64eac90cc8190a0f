"""Puts the hooks in, or stands down as a whole. One `Plugin` in each process that sglang loads plugins in."""

import atexit
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from sglang_hooks.compat import EngineParts, Findings, survey
from sglang_hooks.contain import contained
from sglang_hooks.decode.points import missing_points
from sglang_hooks.decode.side import DecodeSide
from sglang_hooks.embedded import on_absent
from sglang_hooks.hook_points import BACKENDS, HOOK_POINTS
from sglang_hooks.hooks.backends import take_hold_of_own_methods
from sglang_hooks.hooks.control import ControlMessages
from sglang_hooks.hooks.guard import PrefillGuard
from sglang_hooks.hooks.manager import (
    RANK_ATTRIBUTE,
    around_record_failure,
    around_status_message,
    around_update_status,
    around_worker_status,
)
from sglang_hooks.hooks.parking import ParkingHooks
from sglang_hooks.hooks.pipeline import PipelineHooks
from sglang_hooks.hooks.push import around_send_multipart
from sglang_hooks.hooks.queue import ChunkCount
from sglang_hooks.hooks.refusals import RefusalHooks
from sglang_hooks.hooks.scheduler import SchedulerHooks
from sglang_hooks.hooks.sender import around_abort, around_clear, around_init
from sglang_hooks.hooks.tokenizer import TokenizerHooks
from sglang_hooks.rank import Rank
from sglang_hooks.settings import Settings, read_settings
from sglang_hooks.uncovered import uncovered
from sglang_hooks.whole_engine import engine_name_at_rank, mark_engine
from sidecar.model import PROTOCOL, Hello

logger = logging.getLogger("pd_sidecar")

GOODBYE_LIMIT_S = 0.5
"""That the end of the interpreter may take longer for our sake."""


def install() -> None:
    """Raises ConfigError for a setting that cannot work."""
    settings = read_settings(os.environ)
    if settings.disabled:
        logger.warning("pd-sidecar: switched off by PD_SIDECAR_DISABLE; the engine runs as stock sglang does")
        return
    findings = survey()
    if findings.parts is None:
        logger.warning("pd-sidecar: stands down, this sglang lacks what it hooks: %s", findings.missing)
        return
    if settings.push == "all" and not findings.has("send_multipart"):
        verdict = findings.verdicts["send_multipart"]
        logger.warning("pd-sidecar: PD_SIDECAR_PUSH=all has no effect: %s", verdict)
    mark_engine(os.environ)
    Plugin(settings=settings, findings=findings, parts=findings.parts).register_hooks()


def _has_decode_half(settings: Settings) -> bool:
    if settings.decode_half and (missing := missing_points()):
        logger.warning("pd-sidecar: no decode half, this sglang lacks what it hooks: %s", missing)
        return False
    return settings.decode_half


class Plugin:
    def __init__(self, *, settings: Settings, findings: Findings, parts: EngineParts) -> None:
        self._settings = settings
        self._findings = findings
        self._parts = parts
        self._rank: Rank | None = None
        self._guard: PrefillGuard | None = None
        self._pipeline = PipelineHooks()
        self._parking = ParkingHooks(parts)
        self._scheduler = SchedulerHooks(parts, self._pipeline, self._parking)
        self._refusals = RefusalHooks()
        self._tokenizer = TokenizerHooks(settings=settings, sglang=parts.version, verdicts=findings.verdicts)
        self.decode = DecodeSide(has_half=_has_decode_half(settings), sglang=parts.version)

    def register_hooks(self) -> None:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only inside an engine

        around, after = self.around_hooks(), self.after_hooks()
        for point in HOOK_POINTS:
            if not self._findings.has(point.name):
                continue
            if (body := around.get(point.name)) is not None:
                HookRegistry.register(point.target, body, HookType.AROUND)
            if (body := after.get(point.name)) is not None:
                HookRegistry.register(point.target, body, HookType.AFTER)
        for target, body in self.decode.around_hooks().items():
            HookRegistry.register(target, body, HookType.AROUND)

    def around_hooks(self) -> dict[str, Callable[..., Any]]:
        chunks = ChunkCount(lambda: self._rank)
        scheduler = self._scheduler
        return {
            "update_status": around_update_status,
            "record_failure": around_record_failure,
            "worker_status": around_worker_status,
            "status_message": around_status_message,
            "sender_init": around_init,
            "sender_abort": around_abort,
            "sender_clear": around_clear,
            "queue_put": chunks.around_put,
            "queue_get": chunks.around_get,
            "poll_reduce": scheduler.around_poll_reduce,
            "abort_request": scheduler.around_abort_request,
            "chunked_abort": self._parking.around_chunked_abort,
            "result_is_retired": self._parking.around_retire,
            "send_chunk": scheduler.around_send_chunk,
            "inflight": scheduler.around_inflight,
            "pp_transferred": scheduler.around_inflight,
            "prefill_chunk": self._pipeline.around_prefill_chunk,
            "pop_bootstrapped": self._pipeline.around_pop_bootstrapped,
            **({"send_multipart": around_send_multipart} if self._settings.push == "all" else {}),
            **self._refusals.around_hooks(),
            **self._tokenizer.around_hooks(),
        }

    def after_hooks(self) -> dict[str, Callable[..., None]]:
        return {
            "manager_init": self.after_manager_init,
            "internal_state": self.after_internal_state,
            **self._tokenizer.after_hooks(),
        }

    def after_internal_state(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._scheduler.after_internal_state(result, scheduler, *args, **kwargs)
        self.decode.after_internal_state(result)
        if self._guard is not None:
            self._guard.report(result)

    @contained(otherwise=None)
    def after_manager_init(self, _result: None, manager: Any, *args: Any, **_kwargs: Any) -> None:
        """Runs inside the backend's `__init__`, after the common one and before any thread of the manager exists."""
        if manager.disaggregation_mode.value == "decode":
            self.decode.attach(manager)
            return
        backend = BACKENDS.get(type(manager).__module__)
        if backend is None or manager.disaggregation_mode.value != "prefill":
            return
        if _tells_decode_itself(manager):
            self._guard = PrefillGuard(manager)
            self._guard.install()
            return
        rank = Rank(
            hello=self._hello(manager, backend, server_args=args[2] if len(args) > 2 else None),
            socket=self._settings.socket,
            record_ttl_s=self._settings.record_ttl_s,
            drain_timeout_s=self._settings.drain_timeout_s,
            on_absent=on_absent(self._settings),
        )
        if self._settings.push == "all" and self._findings.has("send_multipart"):
            rank.carry_statuses()
        messages = ControlMessages(manager, rank)
        messages.gate.install()
        manager.__dict__["_pd_sidecar_messages"] = messages
        manager.__dict__[RANK_ATTRIBUTE] = rank
        take_hold_of_own_methods(manager, backend)
        self._let_go()
        self._rank = rank
        rank.emitter.start()
        atexit.register(rank.say_goodbye, limit_s=GOODBYE_LIMIT_S)

    def _let_go(self) -> None:
        """An engine that has changed its role (from 0.5.21) builds its manager anew."""
        if self._rank is not None:
            atexit.unregister(self._rank.say_goodbye)
            self._rank.say_goodbye(limit_s=GOODBYE_LIMIT_S)

    def _hello(self, manager: Any, backend: str, *, server_args: Any) -> Hello:
        prefill_rank = (
            manager.attn_tp_rank * manager.pp_size * manager.attn_cp_size
            + manager.pp_rank * manager.attn_cp_size
            + manager.attn_cp_rank
        )
        return Hello(
            protocol=PROTOCOL,
            process=uuid.uuid4().hex,
            engine=engine_name_at_rank(manager.bootstrap_host, manager.bootstrap_port),
            role="prefill",
            prefill_rank=prefill_rank,
            tp_rank=manager.attn_tp_rank,
            pp_rank=manager.pp_rank,
            dp_rank=manager.attn_dp_rank or 0,
            pid=os.getpid(),
            sglang=self._parts.version,
            backend=backend,
            record_ttl_s=self._settings.record_ttl_s,
            hooks=self._findings.verdicts,
            uncovered=uncovered(server_args, os.environ),
        )


def _tells_decode_itself(manager: Any) -> bool:
    """`--disaggregation-decode-allocation-policy prefill_complete`, from 0.5.22: stock pushes every end of a room."""
    return bool(getattr(manager, "defer_decode_allocation", False))
