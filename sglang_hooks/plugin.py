"""Puts the hooks in, or stands down as a whole. One `Plugin` in each process that sglang loads plugins in."""

import atexit
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from sglang_hooks.compat import EngineParts, Findings, all_points, survey
from sglang_hooks.contain import contained
from sglang_hooks.embedded import EmbeddedStart
from sglang_hooks.hooks.manager import (
    RANK_ATTRIBUTE,
    ControlMessages,
    around_record_failure,
    around_update_status,
    around_worker_status,
)
from sglang_hooks.hooks.pipeline import PipelineHooks
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
    mark_engine(os.environ)
    Plugin(settings=settings, findings=findings, parts=findings.parts).register_hooks()


class Plugin:
    def __init__(self, *, settings: Settings, findings: Findings, parts: EngineParts) -> None:
        self._settings = settings
        self._findings = findings
        self._parts = parts
        self._rank: Rank | None = None
        self._pipeline = PipelineHooks()
        self._scheduler = SchedulerHooks(parts, self._pipeline)
        self._refusals = RefusalHooks()
        self._tokenizer = TokenizerHooks(settings=settings, sglang=parts.version, verdicts=findings.verdicts)

    def register_hooks(self) -> None:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only inside an engine

        targets = {point.name: point.target for point in all_points()}
        for name, body in self.around_hooks().items():
            if name in targets:
                HookRegistry.register(targets[name], body, HookType.AROUND)
        for name, body in self.after_hooks().items():
            if name in targets:
                HookRegistry.register(targets[name], body, HookType.AFTER)

    def around_hooks(self) -> dict[str, Callable[..., Any]]:
        chunks = ChunkCount(lambda: self._rank)
        scheduler = self._scheduler
        return {
            "update_status": around_update_status,
            "record_failure": around_record_failure,
            "worker_status": around_worker_status,
            "sender_init": around_init,
            "sender_abort": around_abort,
            "sender_clear": around_clear,
            "queue_put": chunks.around_put,
            "queue_get": chunks.around_get,
            "poll_reduce": scheduler.around_poll_reduce,
            "abort_request": scheduler.around_abort_request,
            "chunked_abort": scheduler.around_chunked_abort,
            "send_chunk": scheduler.around_send_chunk,
            "inflight": scheduler.around_inflight,
            "pp_transferred": scheduler.around_inflight,
            "prefill_chunk": self._pipeline.around_prefill_chunk,
            "pop_bootstrapped": self._pipeline.around_pop_bootstrapped,
            **self._refusals.around_hooks(),
            **self._tokenizer.around_hooks(),
        }

    def after_hooks(self) -> dict[str, Callable[..., None]]:
        return {
            "manager_init": self.after_manager_init,
            "internal_state": self._scheduler.after_internal_state,
            **self._tokenizer.after_hooks(),
        }

    @contained(otherwise=None)
    def after_manager_init(self, _result: None, manager: Any, *args: Any, **_kwargs: Any) -> None:
        """Runs inside the backend's `__init__`, after the common one and before any thread of the manager exists."""
        is_served = type(manager) is self._parts.mooncake_manager
        if not is_served or manager.disaggregation_mode.value != "prefill":
            return
        rank = Rank(
            hello=self._hello(manager, server_args=args[2] if len(args) > 2 else None),
            socket=self._settings.socket,
            record_ttl_s=self._settings.record_ttl_s,
            drain_timeout_s=self._settings.drain_timeout_s,
            on_absent=self._on_absent(),
        )
        messages = ControlMessages(manager, rank)
        manager.server_socket.recv_multipart = messages.wrap(manager.server_socket.recv_multipart)
        manager.__dict__["_pd_sidecar_messages"] = messages
        manager.__dict__[RANK_ATTRIBUTE] = rank
        self._rank = rank
        rank.emitter.start()
        atexit.register(rank.say_goodbye, limit_s=GOODBYE_LIMIT_S)

    def _hello(self, manager: Any, *, server_args: Any) -> Hello:
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
            backend="mooncake",
            record_ttl_s=self._settings.record_ttl_s,
            hooks=self._findings.verdicts,
            uncovered=uncovered(server_args, os.environ),
        )

    def _on_absent(self) -> Callable[[], str | None]:
        if not self._settings.embedded:
            return lambda: "PD_SIDECAR_EMBEDDED=0, so none is started"
        return EmbeddedStart(socket=self._settings.socket, idle_exit_s=self._settings.idle_exit_s)
