"""Handshakes that meet an ended room, and rooms that are used again, on sglang's own bootstrap thread."""

from contextlib import suppress

import pytest

from sidecar.model import DecodeAborted, DecodeHandshake
from tests.engine.stage import KVPoll, Stage

pytestmark = pytest.mark.engine

ROOM = 4712


def end_unmet(stage: Stage) -> None:
    """The request is aborted before any decode shook hands."""
    req = stage.request(ROOM)
    stage.scheduler.waiting_queue.append(req)
    stage.abort(req.rid)


def late(stage: Stage) -> list[DecodeHandshake]:
    return [fact for fact in stage.facts if isinstance(fact, DecodeHandshake) and fact.room == ROOM]


@pytest.mark.parametrize("required", [1, 2])
def test_late_fan_in_is_told_and_rebuilds_nothing(stage: Stage, stock: Stage, required: int) -> None:
    """Stock takes the metadata of an aborted room, full fan-in or partial, into tables that nobody will empty."""
    for each in (stage, stock):
        end_unmet(each)
        decode = each.decode()
        decode.handshake(ROOM, required=required)
        each.dealt_with(decode)

    assert stock.tables(ROOM)["transfer_infos"]
    assert not stage.knows(ROOM)
    assert len(late(stage)) == 1
    assert stage.rank.counts.late_handshakes == 1


def test_late_dummy_is_kept_out_and_not_told(stage: Stage) -> None:
    end_unmet(stage)
    decode = stage.decode()
    decode.handshake(ROOM, dummy=True)
    stage.dealt_with(decode)

    assert not stage.knows(ROOM)
    assert late(stage) == []


def test_early_handshake_is_served(stage: Stage) -> None:
    """Unknown is not ended: decode may come first."""
    decode = stage.decode()
    decode.handshake(ROOM)
    stage.dealt_with(decode)

    req = stage.request(ROOM)

    assert KVPoll.WaitingForInput == req.disagg_kv_sender.poll()
    assert [decode.port] == [fact.endpoint.port for fact in late(stage)]


def test_room_is_used_again_by_a_new_pair(stage: Stage) -> None:
    end_unmet(stage)
    first = stage.decode()
    first.handshake(ROOM)
    stage.dealt_with(first)

    second = stage.decode()
    req = stage.handshaken(ROOM, second)
    stage.send(req, 8)

    assert b"%d" % KVPoll.Success == second.hear()[1]
    assert first.hears_nothing()
    assert [first.port, second.port] == [fact.endpoint.port for fact in late(stage)]
    assert late(stage)[0].life < late(stage)[1].life


def test_partial_fan_in_of_the_old_life_does_not_count_for_the_new_one(stage: Stage) -> None:
    first = stage.decode()
    req = stage.request(ROOM)
    first.handshake(ROOM, required=2)
    stage.dealt_with(first)
    stage.scheduler.waiting_queue.append(req)
    stage.abort(req.rid)

    stage.request(ROOM)
    second = stage.decode()
    second.handshake(ROOM, required=2)
    stage.dealt_with(second)

    assert KVPoll.Bootstrapping == stage.status(ROOM)
    assert [second.session] == list(stage.manager.transfer_infos[ROOM])


def test_the_room_is_not_revived_by_a_handshake_that_stock_handles_as_it_ends(stage: Stage) -> None:
    """The interleaving: our look at the message, the abort on the scheduler thread, then stock's handling of the
    message."""
    decode = stage.decode()
    req = stage.request(ROOM)
    stage.scheduler.waiting_queue.append(req)
    meet = stage.rank.meet

    def meet_then_abort(room: int, *rest: object) -> bool:
        is_late = meet(room, *rest)  # type: ignore[arg-type]
        if room == ROOM:
            stage.abort(req.rid)
        return is_late

    stage.rank.meet = meet_then_abort  # type: ignore[method-assign]
    decode.handshake(ROOM)
    stage.dealt_with(decode)

    assert not stage.knows(ROOM)
    assert stage.rank.counts.revivals_purged == 1
    assert len(late(stage)) == 1
    assert len(stage.failures(ROOM)) == 1


def test_an_old_sender_does_not_clear_the_tables_of_the_rooms_new_life(stage: Stage, stock: Stage) -> None:
    """Aborted in the bootstrap queue, and a new request with the same room in the same batch of input: stock's
    clean-up of the old one takes the new one's status away. The next poll raises KeyError in the scheduler, from 0.5.23
    it fails the new request."""
    senders = []
    for each in (stage, stock):
        old = each.request(ROOM)
        each.scheduler.disagg_prefill_bootstrap_queue.queue.append(old)
        each.abort(old.rid)
        new = each.request(ROOM)
        each.scheduler.handle_bootstrap_failure(old)
        senders.append(new.disagg_kv_sender)

    with suppress(KeyError):
        assert KVPoll.Failed == senders[1].poll()
    assert KVPoll.Bootstrapping == senders[0].poll()


def test_decodes_abort_for_the_ended_room_is_acknowledged_and_leaves_nothing(stage: Stage) -> None:
    end_unmet(stage)
    decode = stage.decode()
    decode.handshake(ROOM)
    decode.abort(ROOM)

    assert decode.hear() == [b"ABORT_ACK", b"%d" % ROOM]
    stage.dealt_with(decode)
    assert not stage.knows(ROOM)
    assert isinstance(stage.facts[-1], DecodeAborted) or any(isinstance(fact, DecodeAborted) for fact in stage.facts)


def test_decodes_abort_for_the_old_life_is_acknowledged_and_spares_the_new_one(stage: Stage) -> None:
    end_unmet(stage)
    first = stage.decode()
    first.handshake(ROOM)
    stage.dealt_with(first)
    second = stage.decode()
    req = stage.handshaken(ROOM, second)

    first.abort(ROOM)

    assert first.hear() == [b"ABORT_ACK", b"%d" % ROOM]
    stage.dealt_with(first)
    assert KVPoll.WaitingForInput == req.disagg_kv_sender.poll()
    assert stage.rank.counts.guarded_aborts == 1
    assert ROOM not in stage.manager.failure_records


def test_a_handshake_of_an_ended_room_whose_record_was_evicted_is_still_told(stage: Stage) -> None:
    stage.rank.table._record_limit = 2  # noqa: SLF001 - the bound, made small
    end_unmet(stage)
    for room in range(3):
        req = stage.request(room)
        stage.scheduler.waiting_queue.append(req)
        stage.abort(req.rid)
    assert stage.rank.table.losses.records_evicted == 2

    decode = stage.decode()
    decode.handshake(ROOM)
    stage.dealt_with(decode)

    assert len(late(stage)) == 1
    assert not stage.knows(ROOM)
