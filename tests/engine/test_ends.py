"""Every way in which a request that has a sender ends without Success, on sglang's own classes."""

import pytest
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from tests.engine.stage import KVPoll, Stage, wait_until

pytestmark = pytest.mark.engine

ROOM = 4711
LOOKS_AGAIN = hasattr(MooncakeKVManager, "conclude_transfer")
"""From 0.5.20 a worker looks after its last write whether the request was aborted meanwhile."""


def test_waiting_request_that_decode_knows_is_told_and_leaves_nothing(stage: Stage, stock: Stage) -> None:
    """Stock pops it from the queue and leaves its sender as it was: decode waits, and the room stays in three
    tables."""
    for each in (stage, stock):
        req = each.handshaken(ROOM, each.decode())
        each.scheduler.waiting_queue.append(req)
        each.abort(req.rid)

    assert stock.tables(ROOM)["request_status"]
    assert stock.tables(ROOM)["transfer_infos"]
    assert not stage.knows(ROOM)
    assert [fact.drained for fact in stage.failures(ROOM)] == [True]
    assert stage.free_slots() == 8
    assert len(stage.answers) == 1


def test_waiting_request_with_the_handshake_pending(stage: Stage, stock: Stage) -> None:
    """Stock aborts this sender but never clears it."""
    for each in (stage, stock):
        req = each.request(ROOM)
        req.pending_bootstrap = True
        each.scheduler.waiting_queue.append(req)
        each.abort(req.rid)

    assert stock.tables(ROOM)["request_status"]
    assert stock.tables(ROOM)["failure_records"]
    assert not stage.knows(ROOM)
    assert len(stage.failures(ROOM)) == 1


def test_request_in_the_bootstrap_queue_is_told_before_the_next_poll(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode())
    stage.scheduler.disagg_prefill_bootstrap_queue.queue.append(req)

    stage.abort(req.rid)

    assert len(stage.failures(ROOM)) == 1
    assert KVPoll.Failed == req.disagg_kv_sender.poll()


def test_bootstrap_failure_empties_all_tables_and_is_told_once(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode())
    stage.scheduler.disagg_prefill_bootstrap_queue.queue.append(req)
    stage.abort(req.rid)

    stage.scheduler.handle_bootstrap_failure(req)

    assert not stage.knows(ROOM)
    assert len(stage.failures(ROOM)) == 1
    assert stage.free_slots() == 8
    assert [req.rid] == [rid for rid, _ in stage.answers]


def test_bootstrap_timeout_is_told_with_its_cause(stage: Stage) -> None:
    req = stage.request(ROOM)
    stage.manager.bootstrap_timeout = 0

    assert KVPoll.Failed == req.disagg_kv_sender.poll()
    stage.scheduler.handle_bootstrap_failure(req)

    assert ["timed out" in fact.cause for fact in stage.failures(ROOM)] == [True]
    assert not stage.knows(ROOM)


def test_chunked_request_keeps_pages_and_slot_until_its_transfers_drained(stage: Stage, released: list[str]) -> None:
    """Promises 2 and 6: no notice and no release while a worker still writes; then one answer, one release, one
    notice."""
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    wait_until(lambda: len(stage.transfers.begun) == 1, "the chunk was not taken")
    stage.send(req, 8)
    stage.scheduler.chunked_req = req
    stage.abort(req.rid)

    stage.scheduler.process_pending_chunked_abort()
    stage.poll_inflight()

    assert stage.scheduler.chunked_req is None
    assert [req] == stage.scheduler.disagg_prefill_inflight_queue
    assert (stage.failures(ROOM), stage.answers, released, stage.free_slots()) == ([], [], [], 7)

    stage.transfers.gate.set()
    stage.drained(req)
    stage.poll_inflight()

    assert stage.scheduler.disagg_prefill_inflight_queue == []
    assert [req.rid] == released
    assert [reason.message for _, reason in stage.answers] == ["Aborted"]
    assert len(stage.failures(ROOM)) == 1
    assert stage.free_slots() == 8
    assert stage.transfers.written == [8], "the chunk that was only queued must not be written"
    assert not stage.knows(ROOM)


def test_stock_releases_a_chunked_request_under_the_writer(stock: Stage, released: list[str]) -> None:
    """What the test above guards against: the pages go while a worker reads them."""
    req = stock.handshaken(ROOM, stock.decode(), pages=24)
    stock.transfers.gate.clear()
    stock.send(req, 8)
    wait_until(lambda: len(stock.transfers.begun) == 1, "the chunk was not taken")
    stock.scheduler.chunked_req = req
    stock.abort(req.rid)

    stock.scheduler.process_pending_chunked_abort()

    assert [req.rid] == released
    assert stock.transfers.written == []
    assert stock.tables(ROOM)["request_status"]


def test_chunked_request_of_which_nothing_was_sent_ends_at_once(stage: Stage, released: list[str]) -> None:
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.scheduler.chunked_req = req
    stage.abort(req.rid)

    stage.scheduler.process_pending_chunked_abort()

    assert stage.scheduler.disagg_prefill_inflight_queue == []
    assert [req.rid] == released
    assert len(stage.failures(ROOM)) == 1
    assert len(stage.answers) == 1
    assert not stage.knows(ROOM)


def test_running_request_that_is_to_be_aborted_sends_nothing(stage: Stage) -> None:
    """Stock 0.5.18 sends the KV of such a request and reports Success."""
    req = stage.handshaken(ROOM, stage.decode())
    req.to_finish = FINISH_ABORT("input too long", 400)
    stage.scheduler.disagg_prefill_inflight_queue.append(req)

    stage.scheduler.send_kv_chunk(req, last_chunk=True)
    stage.poll_inflight()

    assert stage.transfers.begun == []
    assert [fact.cause for fact in stage.failures(ROOM)] == ["input too long"]
    assert [(reason.message, reason.status_code) for _, reason in stage.answers] == [("input too long", 400)]
    assert not stage.knows(ROOM)


def test_running_request_is_told_before_its_forward_has_ended(stage: Stage) -> None:
    """Nothing of it was sent, and its sender can send nothing any more: decode need not wait for seconds of
    computing."""
    req = stage.handshaken(ROOM, stage.decode())
    stage.scheduler.last_batch = type("Batch", (), {"reqs": [req]})()

    stage.abort(req.rid)

    assert len(stage.failures(ROOM)) == 1
    stage.send(req, 8)
    assert stage.transfers.begun == []


def test_inflight_request_waits_for_its_last_chunk(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    wait_until(lambda: len(stage.transfers.begun) == 1, "the chunk was not taken")
    stage.send(req, 16)
    stage.scheduler.disagg_prefill_inflight_queue.append(req)

    stage.abort(req.rid)
    stage.poll_inflight()
    assert stage.failures(ROOM) == []

    stage.transfers.gate.set()
    stage.drained(req)
    stage.poll_inflight()

    assert len(stage.failures(ROOM)) == 1
    assert stage.transfers.written == [8]
    assert [req.rid] == [rid for rid, _ in stage.answers]


def test_abort_during_the_last_chunk_loses_to_its_success(stage: Stage) -> None:
    """Decode is told Success by stock, so it must not be told the contrary, and P's client gets the same end
    (promise 3). From 0.5.20 it is told Failed by stock."""
    decode = stage.decode()
    req = stage.handshaken(ROOM, decode)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    wait_until(lambda: len(stage.transfers.begun) == 1, "the chunk was not taken")
    stage.scheduler.disagg_prefill_inflight_queue.append(req)

    stage.abort(req.rid)
    stage.poll_inflight()
    stage.transfers.gate.set()
    stage.drained(req)
    stage.poll_inflight()

    if LOOKS_AGAIN:
        assert [b"%d" % ROOM, b"%d" % KVPoll.Failed, b"0"] == decode.hear()
        assert (len(stage.failures(ROOM)), stage.successes(ROOM)) == (1, 0)
        assert not stage.knows(ROOM)
        return
    assert [b"%d" % ROOM, b"%d" % KVPoll.Success, b"0"] == decode.hear()
    assert decode.hears_nothing()
    assert (len(stage.failures(ROOM)), stage.successes(ROOM)) == (0, 1)
    assert [type(reason) for _, reason in stage.answers] != [FINISH_ABORT]
    assert not stage.knows(ROOM)


def test_two_aborts_of_one_request_are_one_end(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode(), pages=24)
    stage.transfers.gate.clear()
    stage.send(req, 8)
    stage.scheduler.disagg_prefill_inflight_queue.append(req)

    stage.abort(req.rid)
    stage.abort(req.rid)
    stage.transfers.gate.set()
    stage.drained(req)
    stage.poll_inflight()
    stage.abort(req.rid)

    assert len(stage.failures(ROOM)) == 1
    assert len(stage.answers) == 1
    assert not stage.knows(ROOM)


def test_transfer_error_is_told_with_its_cause(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode())
    stage.transfers.outcome = -1
    stage.send(req, 8)
    stage.scheduler.disagg_prefill_inflight_queue.append(req)
    stage.drained(req)

    stage.poll_inflight()

    assert ["Failed to send kv chunk" in fact.cause for fact in stage.failures(ROOM)] == [True]
    assert not stage.knows(ROOM)


def test_decodes_own_abort_ends_the_request_and_settles(stage: Stage) -> None:
    decode = stage.decode()
    req = stage.handshaken(ROOM, decode)
    stage.scheduler.waiting_queue.append(req)
    decode.abort(ROOM)

    assert decode.hear() == [b"ABORT_ACK", b"%d" % ROOM]
    assert KVPoll.Failed == req.disagg_kv_sender.poll()
    stage.scheduler.handle_bootstrap_failure(req)

    assert not stage.knows(ROOM)
    assert [type(fact).__name__ for fact in stage.facts[-2:]] == ["DecodeAborted", "RoomConcluded"]


def test_success_leaves_nothing_and_tells_no_failure(stage: Stage) -> None:
    decode = stage.decode()
    req = stage.handshaken(ROOM, decode)
    stage.send(req, 8)
    stage.scheduler.disagg_prefill_inflight_queue.append(req)
    stage.drained(req)

    stage.poll_inflight()

    assert b"%d" % KVPoll.Success == decode.hear()[1]
    assert not stage.knows(ROOM)
    assert (len(stage.failures(ROOM)), stage.successes(ROOM)) == (0, 1)
    assert stage.rank.table.counts() == {"open": 0, "early": 0, "records": 0, "tombstones": 0}


def test_a_chunk_of_a_room_that_decode_was_told_of_is_not_written(stage: Stage) -> None:
    """Another rank died, and this one ended the request outside its scheduler, which may yet come to the next chunk."""
    decode = stage.decode()
    req = stage.handshaken(ROOM, decode)
    assert stage.rank is not None
    stage.rank.sibling_died()
    assert len(stage.failures(ROOM)) == 1

    stage.send(req, 2)
    other = stage.handshaken(ROOM + 1, decode)
    stage.send(other, 3)  # behind it in the same queue
    stage.drained(other)

    assert stage.transfers.written == [3]
