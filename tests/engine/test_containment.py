"""The engine comes first: faults of ours, and objects that the plugin never saw, leave stock behaviour."""

import importlib.metadata

import pytest
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager, MooncakeKVSender

from sglang_hooks.compat import judge, verdict_of
from sglang_hooks.contain import FAULTS
from sglang_hooks.hook_points import HOOK_POINTS
from tests.engine.stage import FastQueue, KVPoll, Stage, TransferKVChunk, wait_until

pytestmark = pytest.mark.engine

ROOM = 4713


def test_every_hook_point_is_in_this_sglang() -> None:
    """As `tests/drift` finds it in the wheel: `verdict_of` looks at the function under the hook."""
    found = judge({point.name: verdict_of(point) for point in HOOK_POINTS})

    assert set(found.values()) == {"found"}


def test_the_plugin_is_found_by_its_entry_point() -> None:
    names = {point.name: point.value for point in importlib.metadata.entry_points(group="sglang.srt.plugins")}

    assert names["pd_sidecar"] == "sglang_hooks:register"


def test_a_manager_made_without_init_serves_as_stock(plugin: object) -> None:
    """sglang's own unit tests make them so."""
    manager = MooncakeKVManager.__new__(MooncakeKVManager)
    manager.request_status, manager._deferred_ack_targets = {}, {}  # noqa: SLF001 - sglang's own
    manager._deferred_ack_poisoned_rooms, manager._staging_outstanding = set(), {}  # noqa: SLF001 - sglang's own

    manager.update_status(ROOM, KVPoll.WaitingForInput)

    assert KVPoll.WaitingForInput == manager.request_status[ROOM]


def test_a_sender_made_without_init_aborts_as_stock(stage: Stage) -> None:
    sender = MooncakeKVSender.__new__(MooncakeKVSender)
    sender.kv_mgr = stage.manager
    sender.bootstrap_room = ROOM
    sender.trace_ctx = type("Trace", (), {"abort": lambda *_a, **_k: None, "trace_req_finish": lambda *_a: None})()
    stage.manager.update_status(ROOM, KVPoll.WaitingForInput)

    sender.abort()
    assert KVPoll.Failed == stage.status(ROOM)

    sender.clear()
    assert stage.status(ROOM) is None


def test_a_queue_of_anything_else_is_left_alone(stage: Stage) -> None:
    queue = FastQueue()
    queue.put(None)
    queue.put("work")

    assert [queue.get(), queue.get()] == [None, "work"]


@pytest.mark.parametrize(
    "broken", ["open", "_begin_end", "release", "meet", "chunk_put", "chunk_finished", "succeeded"]
)
def test_a_fault_in_the_rank_does_not_reach_the_engine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A normal request, then an abort, with one part of ours raising at every call."""

    def breaks(*_args: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(stage.rank, broken, breaks)
    before = FAULTS.total()
    decode = stage.decode()
    done = stage.handshaken(ROOM, decode)
    stage.send(done, 8)
    assert b"%d" % KVPoll.Success == decode.hear()[1]

    aborted = stage.handshaken(ROOM + 1, decode)
    stage.scheduler.waiting_queue.append(aborted)
    stage.abort(aborted.rid)

    assert len(stage.answers) == 1
    assert FAULTS.total() > before


def test_the_transfer_worker_outlives_a_fault_of_ours(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.rank, "chunk_finished", lambda _life: 1 / 0)
    decode = stage.decode()
    for room in (ROOM, ROOM + 1):
        stage.send(stage.handshaken(room, decode), 8)
        assert b"%d" % room == decode.hear()[0]


def test_chunks_keep_their_life_when_the_room_is_used_again(stage: Stage) -> None:
    """A chunk belongs to the life it was put for, not to the room."""
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    wait_until(lambda: len(stage.transfers.begun) == 1, "the chunk was not taken")
    old = vars(req.disagg_kv_sender)["_pd_sidecar_life"]

    new = vars(stage.request(ROOM).disagg_kv_sender)["_pd_sidecar_life"]
    stage.transfers.gate.set()
    wait_until(lambda: old.is_drained, "the worker did not come back")

    assert (old.put, old.finished) == (1, 1)
    assert (new.put, new.finished) == (0, 0)


def test_a_transfer_chunk_takes_our_mark() -> None:
    """`TransferKVChunk` is a plain dataclass; with slots the drain count would be lost."""
    assert "__slots__" not in vars(TransferKVChunk)
