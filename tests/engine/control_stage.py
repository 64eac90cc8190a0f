"""sglang's own control threads, of each backend and both roles, with the vendor's library left out.

Managers are made without their `__init__`: the tables that the threads use, a socket, and nothing that transfers.
"""

import importlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import zmq
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import DisaggregationMode

from sglang_hooks.decode.control import DecodeControl
from sglang_hooks.decode.half import DecodeHalf
from sglang_hooks.hooks.control import ControlMessages
from sglang_hooks.messages.values import Family
from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, Fact, Hello
from tests.engine.stage import POLL_MS, StoppedError, wait_until

LIMIT_S = 10.0
FIRST_ROOM = 1
CLASSES = {
    Family.MOONCAKE: "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager",
    Family.NIXL: "sglang.srt.disaggregation.nixl.conn.NixlKVManager",
    Family.MORI: "sglang.srt.disaggregation.mori.conn.MoriKVManager",
}
STARTERS = {
    (Family.MOONCAKE, "prefill"): "start_prefill_thread",
    (Family.MOONCAKE, "decode"): "start_decode_thread",
    (Family.NIXL, "prefill"): "_start_bootstrap_thread",
    (Family.NIXL, "decode"): "_start_decode_listener_thread",
    (Family.MORI, "prefill"): "_start_bootstrap_thread",
    (Family.MORI, "decode"): "_start_decode_thread",
}


class _Described:
    """In place of the vendor's descriptions: the bytes are the key."""

    def __init__(self, key: str) -> None:
        self.key = key

    @classmethod
    def unpack(cls, blob: bytes) -> "_Described":
        return cls(blob.decode("ascii"))


def stub_mori() -> None:
    """Mori's library names no more than types here."""
    if "mori" in sys.modules:
        return
    names = ("BackendType", "EngineDesc", "IOEngine", "IOEngineConfig", "MemoryDesc", "MemoryLocationType")
    io = ModuleType("mori.io")
    for name in (*names, "PollCqMode", "RdmaBackendConfig", "StatusCode"):
        setattr(io, name, _Described)
    cpp = ModuleType("mori.cpp")
    vars(cpp).update(TransferStatus=_Described, StatusCode=_Described)
    sys.modules.update({"mori": ModuleType("mori"), "mori.io": io, "mori.cpp": cpp})


def class_of(family: Family) -> type:
    if family is Family.MORI:
        stub_mori()
    module, name = CLASSES[family].rsplit(".", 1)
    found: type = getattr(importlib.import_module(module), name)
    return found


def make_manager(family: Family, role: str, context: zmq.Context[Any], stop: threading.Event) -> Any:
    cls: Any = class_of(family)
    manager = cls.__new__(cls)
    socket = context.socket(zmq.PULL)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    peers: set[str] = set()
    agent = SimpleNamespace(add_remote_agent=lambda metadata: _add_peer(peers, metadata))
    vars(manager).update(
        disaggregation_mode=DisaggregationMode(role),
        server_args=SimpleNamespace(enable_pd_role_switch=False),
        kv_args=SimpleNamespace(
            kv_item_lens=[64], kv_data_ptrs=[1], aux_data_ptrs=[1], aux_item_lens=[8], aux_data_lens=[80],
            num_draft_entries=0, engine_rank=0, state_types=[],
        ),
        local_ip="127.0.0.1", rank_port=port, server_socket=socket,
        is_mla_backend=False, is_hybrid_mla_backend=False, _kv_replica_factor=1, dcp_size=1, dcp_rank=0,
        attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, pp_size=1, pp_rank=0,
        request_status={}, failure_records={}, failure_lock=threading.Lock(),
        transfer_infos={}, req_to_decode_prefix_len={}, decode_kv_args_table={},
        prefill_response_tracker=defaultdict(set), required_prefill_response_num_table={},
        addr_to_rooms_tracker=defaultdict(set), room_to_bootstrap_addr={},
        session_failures=defaultdict(int), failed_sessions=set(), session_lock=threading.Lock(),
        transfer_lock=threading.Lock(), _socket_local=threading.local(),
        enable_staging=False, _staging_handler=None, _staging_ctx=None,
        enable_deferred_decode_kv_release=False, _stopped=False, _worker_threads=[],
        _deferred_ack_targets={}, _deferred_ack_poisoned_rooms=set(), _staging_outstanding=defaultdict(int),
        defer_decode_allocation=False, _deferred_abort_ack_tracker={}, _abort_ack_lock=threading.Lock(),
        _validate_peer_state_layout=lambda _info: (True, None), _unblacklist_session=lambda _session: None,
        state_layout_rejections={}, state_strides_validated=set(),
        _send_multipart_locked=lambda *_args, **_kwargs: None,
        agent=agent, engine=SimpleNamespace(register_remote_engine=lambda _description: None),
        _prepare_payload_xfer=lambda _info: None, _prepare_state_xfer=lambda _info: None,
        _start_heartbeat_checker_thread=threading.Thread,
    )  # fmt: skip
    receive = socket.recv_multipart

    def receive_until_stopped(*args: Any, **kwargs: Any) -> list[bytes]:
        while not socket.poll(POLL_MS):
            if stop.is_set():
                raise StoppedError
        return receive(*args, **kwargs)

    socket.recv_multipart = receive_until_stopped
    return manager


def _add_peer(peers: set[str], metadata: bytes) -> None:
    """As NIXL's agent, which takes no metadata but another agent's."""
    if not metadata.startswith(b"nixl"):
        raise RuntimeError("NIXL_ERR_INVALID_PARAM")
    peers.add(metadata.decode("ascii"))


@dataclass
class Served:
    """One rank's socket, the thread of sglang's that serves it, and what the plugin has counted there."""

    manager: Any
    junk: dict[str, int]
    facts: list[Fact]
    half: DecodeHalf | None
    socket: zmq.Socket[Any]
    listener: zmq.Socket[Any]
    port: int
    threads: list[threading.Thread] = field(default_factory=list)

    def send(self, *messages: list[bytes]) -> None:
        for frames in messages:
            self.socket.send_multipart(frames)

    def status(self, room: int) -> int | None:
        found: int | None = self.manager.request_status.get(room)
        return found

    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def dies(self) -> bool:
        deadline = time.monotonic() + LIMIT_S
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        return not self.is_alive()


def attach(manager: Any, family: Family, role: str) -> tuple[dict[str, int], list[Fact], DecodeHalf | None]:
    """As the plugin does in the manager's `__init__`, less stream and hello."""
    facts: list[Fact] = []
    if role == "decode":
        half = DecodeHalf("0.5.18")
        control = DecodeControl(manager, family, half)
        control.install()
        return control.junk, facts, half
    hello = Hello(PROTOCOL, "p", "e", "prefill", 0, 0, 0, 0, 1, "0.5.18", family.value, 300.0, {})
    rank = Rank(hello=hello, socket="/nonexistent/s", record_ttl_s=300.0, drain_timeout_s=30.0, on_absent=lambda: None)
    rank.emitter.post = facts.append  # type: ignore[method-assign]
    messages = ControlMessages(manager, rank)
    messages.gate.install()
    manager.__dict__["_pd_sidecar_messages"] = messages
    manager.__dict__["_pd_sidecar_rank"] = rank
    return rank.counts.junk, facts, None


@contextmanager
def serving(
    family: Family, role: str, *, plugin: bool = True, by: Callable[[Any], object] | None = None
) -> Iterator[Served]:
    """`by` attaches in place of the default."""
    context, stop = zmq.Context(), threading.Event()
    manager = make_manager(family, role, context, stop)
    junk, facts, half = attach(manager, family, role) if plugin and by is None else ({}, [], None)
    if by is not None:
        by(manager)
    socket, listener = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    socket.connect(f"tcp://127.0.0.1:{manager.rank_port}")
    served = Served(manager, junk, facts, half, socket, listener, port)
    before = set(threading.enumerate())
    starter = getattr(manager, STARTERS[family, role], None)
    if starter is not None:
        starter()
    else:  # NIXL's decode up to 0.5.19: ours, with the first room
        manager.update_status(FIRST_ROOM, KVPoll.Bootstrapping)
    served.threads = [thread for thread in threading.enumerate() if thread not in before]
    try:
        yield served
    finally:
        stop.set()
        wait_until(lambda: not served.is_alive(), "the control thread did not end")
        for each in (socket, listener, manager.server_socket):
            each.close(linger=0)
        context.term()
