"""Mori's own manager and sender, with the vendor's engine left out: a room that was aborted is told of once, when its
writes have ended."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from sglang_hooks.plugin import Plugin
from sidecar.model import Fact, RoomConcluded, TerminalStatus
from tests.engine.stage import SENDER_PLACE, FastQueue, KVPoll, LastChunk, common_state, wait_until

pytestmark = pytest.mark.engine

ROOM = 4719
LIMIT_S = 10.0


class Anything(ModuleType):
    """Takes the place of a module of the vendor: every name in it is a class without contents."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


@pytest.fixture(scope="module")
def conn() -> Iterator[Any]:
    """sglang's module for Mori; the vendor's modules stay in place, as other tests might import it again."""
    for name in ("mori", "mori.cpp", "mori.io"):
        sys.modules.setdefault(name, Anything(name))
    module = importlib.import_module("sglang.srt.disaggregation.mori.conn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "StatusCode", SimpleNamespace(SUCCESS="success", IN_PROGRESS="in progress"))
        yield module


@dataclass
class Write:
    """One write under way until it is let go."""

    ended: threading.Event = field(default_factory=threading.Event)

    def InProgress(self) -> bool:
        return not self.ended.is_set()

    def Failed(self) -> bool:
        return False

    def Wait(self) -> None:
        assert self.ended.wait(LIMIT_S)


class LastTask(LastChunk):
    """As Mori up to 0.5.18 looks at it."""

    @property
    def sender(self) -> Any:
        return SimpleNamespace(bootstrap_room=self.room)


class Prefill:
    def __init__(self, conn: Any, plugin: Plugin) -> None:
        self.conn = conn
        self.facts: list[Fact] = []
        self.told: list[Sequence[bytes]] = []
        self.writes: list[Write] = []
        self.on_submit: Callable[[], None] = lambda: None
        self.on_tell: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._context = zmq.Context()
        self.manager = conn.MoriKVManager.__new__(conn.MoriKVManager)
        self.queue = FastQueue()
        vars(self.manager).update(
            common_state(self._context, self._stop),
            engine=SimpleNamespace(wait_all=self._wait_all),
            transfer_lock=threading.Lock(),
            state_mem_descs=[],
            pp_group=SimpleNamespace(is_last_rank=True),
            send_kvcache=self._send_kvcache,
            send_aux=lambda *_: [],
            _transfer_queues=[self.queue],
            transfer_queues=[self.queue],
            _num_shards=1,
            _wait_poll_ms=1,
            _transfer_timeout_ms=0,
            _connect_threadsafe=lambda *_, **__: SimpleNamespace(send_multipart=self._tell),
            _send_multipart_locked=lambda _address, parts, **_: self._tell(parts),  # from 0.5.20
        )
        plugin.after_manager_init(None, self.manager)
        self.rank = vars(self.manager)["_pd_sidecar_rank"]
        self.rank.emitter.post = self.facts.append
        self.rank.emitter.traffic.connected = True
        work = self.manager._transfer_worker  # noqa: SLF001 - sglang's own thread
        self._worker = threading.Thread(target=work, args=(self.queue,), daemon=True)
        self._worker.start()

    def _tell(self, parts: Sequence[bytes]) -> None:
        self.told.append(parts)
        self.on_tell()

    def _wait_all(self, writes: list[Write], *, timeout_ms: int) -> str:
        return self.conn.StatusCode.IN_PROGRESS if any(one.InProgress() for one in writes) else "success"

    def _send_kvcache(self, *_args: Any) -> list[Write]:
        write = Write()
        self.writes.append(write)
        self.on_submit()
        return [write]

    def sender(self, room: int) -> Any:
        sender = self.conn.MoriKVSender(self.manager, "127.0.0.1:1", room, **SENDER_PLACE)
        sender.init(8, 0)
        info = SimpleNamespace(
            endpoint="127.0.0.1",
            dst_port=5,
            engine_key="d",
            is_dummy=False,
            dst_kv_indices=np.arange(8, dtype=np.int32),
            dst_aux_index=0,
            dst_state_indices=[],
        )
        self.manager.transfer_infos[room] = {"d": info}
        self.manager.decode_kv_args_table["d"] = SimpleNamespace(requires_dcp_relayout=False)
        self.manager.update_status(room, KVPoll.WaitingForInput)
        return sender

    def conclusions(self) -> list[TerminalStatus]:
        return [fact.status for fact in self.facts if isinstance(fact, RoomConcluded)]

    def end_writes(self) -> None:
        for write in self.writes:
            write.ended.set()

    def close(self) -> None:
        self.end_writes()
        self._stop.set()
        self.queue.put(LastTask())
        self._worker.join(LIMIT_S)
        assert not self._worker.is_alive()
        self.manager.server_socket.close(linger=0)
        self._context.term()


@contextmanager
def prefilling(conn: Any, plugin: Plugin) -> Iterator[Prefill]:
    made = Prefill(conn, plugin)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def prefill(conn: Any, plugin: Plugin, released: list[str]) -> Iterator[Prefill]:
    with prefilling(conn, plugin) as made:
        yield made


def life_of(sender: Any) -> Any:
    return vars(sender)["_pd_sidecar_life"]


def test_an_abort_before_anything_was_sent_is_told_by_us_alone(prefill: Prefill) -> None:
    sender = prefill.sender(ROOM)

    sender.abort()

    assert sender.poll() == KVPoll.Failed
    assert prefill.told == []
    assert prefill.conclusions() == [TerminalStatus.FAILED]


def test_a_room_aborted_after_its_writes_began_is_told_when_they_have_ended(prefill: Prefill) -> None:
    """Stock's worker leaves them alone: it looks at the room, sees the abort and takes the next chunk."""
    sender = prefill.sender(ROOM)
    prefill.on_submit = sender.abort
    sender.send(np.arange(8, dtype=np.int32))
    wait_until(lambda: len(prefill.writes) == 1, "nothing is written")
    wait_until(lambda: life_of(sender).ending, "no abort")
    with pytest.raises(Exception, match="Abort"):
        sender.failure_exception()

    assert not life_of(sender).is_drained
    assert prefill.conclusions() == []

    prefill.writes[0].ended.set()
    wait_until(lambda: prefill.conclusions() != [], "no conclusion")
    assert prefill.conclusions() == [TerminalStatus.FAILED]
    assert prefill.told == []


def test_a_success_is_known_before_decode_is_told(prefill: Prefill) -> None:
    sender = prefill.sender(ROOM)
    told_before: list[bool] = []
    prefill.on_tell = lambda: told_before.append(life_of(sender).succeeded)
    prefill.on_submit = prefill.end_writes

    sender.send(np.arange(8, dtype=np.int32))

    wait_until(lambda: bool(told_before), "decode is not told")
    assert told_before == [True]
    assert prefill.conclusions() == [TerminalStatus.SUCCESS]
