"""sglang's own manager, sender, queue, workers and scheduler methods, with the vendor's transfer engine, the
network of Gloo and the model left out. Runs inside the engine's venv.

A rank is attached by the plugin, as in an engine; without it the same hooks are stock.
"""

import concurrent.futures
import inspect
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import zmq
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.utils import FastQueue, TransferKVChunk
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager, MooncakeKVSender
from sglang.srt.disaggregation.utils import DisaggregationMode, ReqToMetadataIdxAllocator
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_hooks.compat import survey
from sglang_hooks.plugin import Plugin
from sglang_hooks.rank import Rank
from sglang_hooks.settings import Settings
from sidecar.model import Fact, RoomConcluded, TerminalStatus

LIMIT_S = 10.0
POLL_MS = 50


def installed_plugin(*, drain_timeout_s: float = 30.0, settings: Settings | None = None) -> Plugin:
    """Through sglang's registry, once for the process; no stream is ever opened, unless `settings` say where."""
    findings = survey()
    assert findings.parts is not None, findings.missing
    settings = settings or Settings(
        disabled=False,
        socket="/nonexistent/s.sock",
        embedded=False,
        drain_timeout_s=drain_timeout_s,
        record_ttl_s=300.0,
        idle_exit_s=1.0,
    )
    plugin = Plugin(settings=settings, findings=findings, parts=findings.parts)
    plugin.register_hooks()
    HookRegistry.apply_hooks()
    return plugin


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


class Transfers:
    """In the vendor library's place: each chunk's write waits at the gate, then returns `outcome`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun: list[int] = []
        self.written: list[int] = []
        self.outcome = 0

    def send_kvcache(self, _session: str, indices: Any, *_args: Any, **_kwargs: Any) -> int:
        self.begun.append(len(indices))
        assert self.gate.wait(LIMIT_S), "the transfer was held too long"
        self.written.append(len(indices))
        return self.outcome

    def send_aux(self, *_args: Any, **_kwargs: Any) -> int:
        return self.outcome


SINCE_0_5_19 = {
    "enable_deferred_decode_kv_release": False,
    "_dcp_pack_buffers": [],
    "_dcp_pack_max_tokens": None,
    "_stopped": False,
    "_worker_threads": [],
    "server_args": SimpleNamespace(enable_pd_role_switch=False),
}
"""What later managers have beside the rest."""


class StoppedError(SystemExit):
    """Ends an endless thread of the engine at the end of a test; sglang catches `Exception` only."""


class LastChunk:
    """Ends the transfer worker that takes it."""

    def __init__(self) -> None:
        self._putter = threading.get_ident()

    @property
    def room(self) -> None:
        if threading.get_ident() != self._putter:
            raise StoppedError


def common_state(context: zmq.Context[Any], stop: threading.Event) -> dict[str, Any]:
    """What `CommonKVManager.__init__` leaves in the prefill role, less registration."""
    server_socket = context.socket(zmq.PULL)
    port = server_socket.bind_to_random_port("tcp://127.0.0.1")
    receive = server_socket.recv_multipart

    def receive_until_stopped() -> list[bytes]:
        while not server_socket.poll(POLL_MS):
            if stop.is_set():
                raise StoppedError
        return receive()

    server_socket.recv_multipart = receive_until_stopped
    return {
        "kv_args": SimpleNamespace(page_size=1, kv_data_ptrs=[1], kv_item_lens=[1], state_types=[], engine_rank=0),
        "kv_item_lens_sum": 1,
        "state_item_lens_sum": 0,
        "is_mla_backend": False,
        "is_hybrid_mla_backend": False,
        "_kv_replica_factor": 1,
        "disaggregation_mode": DisaggregationMode.PREFILL,
        "attn_tp_size": 1,
        "attn_tp_rank": 0,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "dcp_size": 1,
        "dcp_rank": 0,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 1,
        "local_ip": "127.0.0.1",
        "rank_port": port,
        "server_socket": server_socket,
        "_zmq_ctx": context,
        "_socket_cache": {},
        "_monitor_cache": {},
        "_socket_send_locks": {},
        "_socket_lock": threading.Lock(),
        "request_status": {},
        "failure_records": {},
        "failure_lock": threading.Lock(),
        "transfer_infos": {},
        "req_to_decode_prefix_len": {},
        "decode_kv_args_table": {},
        "bootstrap_timeout": 300,
        "enable_all_cp_ranks_for_transfer": False,
        "is_dummy_cp_rank": False,
        "enable_staging": False,
        "enable_trace": False,
        "_staging_outstanding": defaultdict(int),
        **SINCE_0_5_19,
        "_deferred_ack_targets": {},
        "_deferred_ack_poisoned_rooms": set(),
    }


def make_manager(context: zmq.Context[Any], transfers: Transfers, stop: threading.Event) -> Any:
    """`MooncakeKVManager` in the prefill role, as its `__init__` leaves it less engine, registration and threads."""
    manager = MooncakeKVManager.__new__(MooncakeKVManager)
    vars(manager).update(
        common_state(context, stop),
        session_failures=defaultdict(int),
        failed_sessions=set(),
        session_lock=threading.Lock(),
        transfer_queues=[FastQueue()],
        send_kvcache=transfers.send_kvcache,
        send_aux=transfers.send_aux,
        _get_dsa_cache_transfer_skip_flags=lambda _info: (False, False),
        state_layout_rejections={},
        failed_session_probes={},
    )
    return manager


@dataclass
class Decode:
    """One decode rank's end: it listens where the real one does, and speaks as the real one does."""

    prefill: zmq.Socket[Any]
    listener: zmq.Socket[Any]
    port: int
    session: str

    def handshake(self, room: int, *, required: int = 1, dummy: bool = False) -> None:
        indices = b"" if dummy else np.arange(64, dtype=np.int32).tobytes()
        aux = b"" if dummy else b"0"
        self.prefill.send_multipart(
            [
                b"%d" % room,
                b"127.0.0.1",
                b"%d" % self.port,
                self.session.encode(),
                indices,
                aux,
                b"",
                b"%d" % required,
                b"0",
                b"",
            ]
        )

    def abort(self, room: int) -> None:
        self.prefill.send_multipart([b"ABORT", b"%d" % room, b"127.0.0.1", b"%d" % self.port])

    def hear(self) -> list[bytes]:
        assert self.listener.poll(LIMIT_S * 1000), "decode heard nothing"
        return self.listener.recv_multipart()

    def hears_nothing(self) -> bool:
        return not self.listener.poll(POLL_MS)


def _silent() -> "_Silent":
    return _Silent()


HAS_KV_OF_ITS_OWN = "holds_kv" in inspect.unwrap(Scheduler.process_pending_chunked_abort).__code__.co_names
"""From 0.5.19 a request's pages and slots are in `req.kv`."""

SENDER_PLACE = {
    name: value
    for name, value in {"dest_tp_ranks": [0], "pp_rank": 0}.items()
    if name in inspect.signature(MooncakeKVSender.__init__).parameters
}
"""Up to 0.5.21."""


def _kv() -> Any:
    return (
        SimpleNamespace(holds_kv=False, holds_mamba=False, req_pool_idx=None, retraction_backup=None)
        if HAS_KV_OF_ITS_OWN
        else None
    )


@dataclass
class Request:
    """The fields of sglang's `Req` that the paths under test touch."""

    rid: str
    bootstrap_room: int
    disagg_kv_sender: Any
    origin_input_ids: list[int] = field(default_factory=lambda: [0] * 8)
    metadata_buffer_index: int = -1
    pending_bootstrap: bool = False
    finished_reason: Any = None
    to_finish: Any = None
    return_logprob: bool = False
    mamba_pool_idx: Any = None
    req_pool_idx: Any = None
    kv: Any = field(default_factory=_kv)
    bootstrap_host: str = "127.0.0.1"
    start_send_idx: int = 0
    skip_radix_cache_insert: bool = False
    time_stats: Any = field(default_factory=_silent)
    cache_request_handle: int = 0
    discard_output_reason: Any = None
    return_routed_experts: bool = False
    session: Any = None
    output_ids: list[int] = field(default_factory=list)

    def release_mm_inputs_on_abort(self) -> None: ...

    def update_finish_state(self) -> None:
        self.finished_reason, self.to_finish = self.to_finish, None

    def finished(self) -> bool:
        return self.finished_reason is not None

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Silent:
    """Takes the place of tracing and of time statistics."""

    def __getattr__(self, _name: str) -> "_Silent":
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> "_Silent":
        return self

    def __bool__(self) -> bool:
        return False


class Stage:
    """One prefill rank, its decode ranks, and a scheduler whose event loop is the test."""

    def __init__(self, plugin: Plugin | None) -> None:
        self.facts: list[Fact] = []
        self.transfers = Transfers()
        self.answers: list[tuple[str, Any]] = []
        self.releases: list[str] = []
        self._stop = threading.Event()
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[Any]] = []
        self._rids = itertools.count()
        self.manager = make_manager(self._context, self.transfers, self._stop)
        self.rank: Rank | None = None
        if plugin is not None:
            self._attach(plugin)
        before = set(threading.enumerate())
        self.manager.start_prefill_thread()
        self._executor = concurrent.futures.ThreadPoolExecutor(1)
        threading.Thread(
            target=self.manager.transfer_worker, args=(self.manager.transfer_queues[0], self._executor)
        ).start()
        self._threads = [thread for thread in threading.enumerate() if thread not in before]
        self.scheduler = self._make_scheduler()

    def _attach(self, plugin: Plugin) -> None:
        plugin.after_manager_init(None, self.manager)
        rank = vars(self.manager)["_pd_sidecar_rank"]
        rank.emitter.post = self.facts.append
        self.rank = rank

    def _make_scheduler(self) -> Any:
        scheduler = Scheduler.__new__(Scheduler)
        answered = SimpleNamespace(send_output=lambda output, req: self.answers.append((req.rid, output)))
        vars(scheduler).update(
            disaggregation_mode=DisaggregationMode.PREFILL,
            chunked_req=None,
            _pending_chunked_abort_req=None,
            waiting_queue=[],
            running_batch=None,
            last_batch=None,
            ps=SimpleNamespace(pp_size=1, tp_rank=0),
            enable_hicache_storage=False,
            enable_overlap=True,
            dllm_config=None,
            tree_cache=_silent(),
            rust_server=None,
            scheduler_stage_metrics=None,
            mm_receiver=None,
            beam_coordinator=_silent(),
            enable_continuous_input_polling=False,
            grammar_manager=SimpleNamespace(abort_requests=lambda _req: None),
            ipc_channels=SimpleNamespace(send_to_tokenizer=answered),
            output_streamer=SimpleNamespace(stream_output=self._stream),
            metrics_reporter=SimpleNamespace(enable_metrics=False),
            req_to_metadata_buffer_idx_allocator=ReqToMetadataIdxAllocator(8),
            disagg_prefill_bootstrap_queue=SimpleNamespace(queue=[], kv_manager=self.manager),
            disagg_prefill_inflight_queue=[],
            disagg_prefill_pending_chunk_rids=set(),
            attn_cp_cpu_group=None,
            attn_tp_cpu_group=None,
        )
        return scheduler

    def _stream(self, reqs: list[Request], *_args: Any) -> None:
        self.answers += [(req.rid, req.finished_reason) for req in reqs]

    def decode(self) -> Decode:
        listener = self._context.socket(zmq.PULL)
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        prefill = self._context.socket(zmq.PUSH)
        prefill.connect(f"tcp://127.0.0.1:{self.manager.rank_port}")
        self._sockets += [listener, prefill]
        session = f"127.0.0.1:{port + 1}"
        self.manager.decode_kv_args_table[session] = SimpleNamespace(
            dst_kv_ptrs=[1],
            dst_aux_ptrs=[1],
            dst_state_data_ptrs=[],
            dst_tp_rank=0,
            dst_attn_tp_size=1,
            dst_kv_item_len=1,
            dst_kv_layer_ids=[],
            dst_kv_item_lens=None,
            requires_dcp_relayout=False,
            staging_base_ptr=0,
            staging_total_size=0,
        )
        return Decode(prefill, listener, port, session)

    def request(self, room: int, *, rid: str | None = None, pages: int = 8) -> Request:
        """A request with its sender and metadata slot, its chunks yet to be sent."""
        sender = MooncakeKVSender(self.manager, "127.0.0.1:1", room, **SENDER_PLACE)
        req = Request(rid or f"r{next(self._rids)}", room, sender)
        req.metadata_buffer_index = self.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
        sender.init(pages, req.metadata_buffer_index)
        return req

    def handshaken(self, room: int, decode: Decode, *, pages: int = 8) -> Request:
        req = self.request(room, pages=pages)
        decode.handshake(room)
        wait_until(lambda: self.status(room) == KVPoll.WaitingForInput, "no handshake")
        return req

    def status(self, room: int) -> int | None:
        status: int | None = self.manager.request_status.get(room)
        return status

    def free_slots(self) -> int:
        return int(self.scheduler.req_to_metadata_buffer_idx_allocator.available_size())

    def tables(self, room: int) -> dict[str, bool]:
        """Which of the engine's tables still know the room."""
        names = ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len")
        return {name: room in getattr(self.manager, name) for name in names}

    def knows(self, room: int) -> bool:
        return any(self.tables(room).values())

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        self.scheduler.abort_request(
            SimpleNamespace(rid=rid, abort_all=abort_all, finished_reason=None, abort_message=None)
        )

    def poll_inflight(self) -> None:
        self.scheduler.process_disagg_prefill_inflight_queue()

    def failures(self, room: int) -> list[RoomConcluded]:
        return [
            fact
            for fact in self.facts
            if isinstance(fact, RoomConcluded) and fact.room == room and fact.status is TerminalStatus.FAILED
        ]

    def successes(self, room: int) -> int:
        return sum(
            isinstance(fact, RoomConcluded) and fact.room == room and fact.status is TerminalStatus.SUCCESS
            for fact in self.facts
        )

    def send(self, req: Request, pages: int) -> None:
        """A chunk goes to the transfer worker, as `send_kv_chunk` hands it over; the last one when all pages of the
        request are."""
        req.disagg_kv_sender.send(np.arange(pages, dtype=np.int32))

    def dealt_with(self, decode: Decode) -> None:
        """Waits until the bootstrap thread has dealt with all that this decode sent before, and is waiting for more."""
        probe = 2**62 + next(self._rids)
        decode.handshake(probe, required=2)
        decode.handshake(probe + 2**20, required=2)
        wait_until(lambda: probe + 2**20 in self.manager.transfer_infos, "the bootstrap thread is gone")
        for room in (probe, probe + 2**20):
            self.manager.transfer_infos.pop(room)

    def drained(self, req: Request) -> None:
        """Waits until the worker has come back for more."""
        life = vars(req.disagg_kv_sender)["_pd_sidecar_life"]
        wait_until(lambda: life.is_drained, "the worker did not come back")

    def close(self) -> None:
        self.transfers.gate.set()
        self._stop.set()
        self.manager.transfer_queues[0].put(LastChunk())
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread
        self._executor.shutdown()
        cached = [*vars(self.manager)["_socket_cache"].values(), *vars(self.manager)["_monitor_cache"].values()]
        for each in (*self._sockets, *cached, self.manager.server_socket):
            each.close(linger=0)
        self._context.term()


@contextmanager
def staged(plugin: Plugin | None) -> Iterator[Stage]:
    stage = Stage(plugin)
    try:
        yield stage
    finally:
        stage.close()


__all__ = [
    "Decode",
    "FastQueue",
    "KVPoll",
    "Request",
    "Stage",
    "StoppedError",
    "TransferKVChunk",
    "installed_plugin",
    "staged",
    "wait_until",
]
