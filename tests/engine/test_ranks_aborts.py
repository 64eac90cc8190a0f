"""Aborts as clients and routers send them, on two ranks: at every place a request can be, more than once, for ids
that others share, for rooms that are used again."""

import pytest

from sidecar.model import DecodeHandshake
from tests.engine.ranks.scene import Raise, Scene
from tests.engine.ranks.spec import Abort, Admit

pytestmark = pytest.mark.engine

ROOM = 4715
ABORTED = ["FINISH_ABORT"]
DROPPED = ["AbortReq"]
FINISHED = ["FINISH_LENGTH"]


def endpoints(scene: Scene, number: int) -> list[int]:
    """The ports of the decode endpoints that rank `number` has told of for the room."""
    return [fact.endpoint.port for fact in scene.facts()[number] if isinstance(fact, DecodeHandshake)]


@pytest.mark.parametrize("fault", ["", "lets late handshakes in"])
def test_handshake_complete_on_one_rank_only(raised: Raise, fault: str) -> None:
    """Both end at once, nothing was sent. Decode's late half meets an ended room, is told, and rebuilds nothing."""
    scene = raised(fault=fault)
    scene.ranks.admit("a", ROOM, 4)
    scene.decode.shake(ROOM, 4, only=0)

    scene.ranks.abort("a")
    assert scene.told(ROOM) == [1, 1]
    assert scene.answers("a") == ABORTED

    scene.decode.ranks[1].shake(scene.ranks[1], ROOM, scene.decode.pages[ROOM])
    if fault:
        scene.ranks[1].shaken(ROOM)
        assert "transfer_infos" in scene.ranks[1].tables(ROOM)
        return
    assert scene.decode.ranks[1].abort_is_acknowledged(
        scene.ranks[1], ROOM
    )  # the bootstrap thread is past the handshake
    assert [[rank.port] for rank in scene.decode.ranks] == [endpoints(scene, number) for number in (0, 1)]
    assert scene.is_clean(ROOM)


def test_bootstrap_timeout_on_one_rank_only(raised: Raise) -> None:
    """One rank's clock ends it for both, in the same round."""
    scene = raised()
    scene.ranks.admit("a", ROOM, 4)
    scene.decode.shake(ROOM, 4, only=0)
    scene.ranks[1].expire_bootstrap()

    scene.ranks.iterate()

    assert scene.answers("a") == ABORTED
    assert scene.told(ROOM) == [1, 1]
    assert scene.is_clean(ROOM)


def test_optimistic_request_in_flight_with_the_handshake_on_one_rank_only(raised: Raise) -> None:
    """Computed before decode came, it waits in the inflight queue for the handshake, when the abort comes."""
    scene = raised(optimistic=1)
    scene.ranks.admit("a", ROOM, 4)
    scene.ranks.iterate(times=2)
    scene.decode.shake(ROOM, 4, only=0)
    scene.ranks.iterate()
    assert scene.inflight() == ["a"]

    scene.ranks.abort("a")

    assert scene.inflight() == []
    assert scene.answers("a") == ABORTED
    assert scene.told(ROOM) == [1, 1]
    assert scene.is_clean(ROOM)


def parked(scene: Scene, rid: str, room: int) -> None:
    """Aborted between chunks; rank 1 still writes the first."""
    scene.ranks[1].hold()
    scene.admit(rid, room, 12)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks.abort(rid)
    assert [rid] == scene.inflight()


def test_abort_of_a_rid_whose_twin_is_waiting(raised: Raise) -> None:
    """The old request is parked, the new one with its rid waits behind another: each has its own end."""
    scene = raised()
    parked(scene, "a", ROOM)
    scene.admit("b", ROOM + 1, 16)
    scene.ranks.iterate()
    scene.admit("a", ROOM + 2, 4)
    scene.ranks.iterate()
    assert scene.ranks.agreed("queues")["waiting"] == ["a"]

    scene.ranks.abort("a")
    assert scene.inflight() == ["a"]
    assert (scene.told(ROOM), scene.told(ROOM + 2)) == ([0, 0], [1, 1])
    assert scene.answers("a") == DROPPED

    scene.ranks[1].let_go()
    scene.play()
    assert (scene.told(ROOM), scene.told(ROOM + 2)) == ([1, 1], [1, 1])
    assert scene.answers("a") == DROPPED + ABORTED
    assert scene.answers("b") == FINISHED
    assert scene.decode.holds("b", ROOM + 1)
    assert scene.is_clean(ROOM, ROOM + 1, ROOM + 2)


@pytest.mark.parametrize("fault", ["", "finds lives by room"])
def test_room_used_again_while_its_old_request_is_parked(raised: Raise, fault: str) -> None:
    """Records and drains belong to the request's life: the new request is served, the old one keeps its pages until
    it has drained, and is told of then."""
    scene = raised(fault=fault)
    parked(scene, "a", ROOM)
    scene.decode.pages.pop(ROOM)
    scene.ranks.admit("c", ROOM, 4)
    if fault:
        scene.ranks.iterate(times=2)
        assert (scene.inflight(), scene.ranks[1].transfers()) == ([], (1, 0))
        return
    scene.decode.shake(ROOM, 4)
    scene.ranks.iterate()
    assert scene.inflight() == ["a"]
    assert scene.told(ROOM) == [0, 0]

    scene.ranks[1].let_go()
    scene.play()
    assert (scene.answers("a"), scene.answers("c")) == (ABORTED, FINISHED)
    assert (scene.told(ROOM), scene.succeeded(ROOM)) == ([1, 1], [1, 1])
    assert scene.decode.holds("c", ROOM)
    assert scene.is_clean(ROOM)


@pytest.mark.parametrize("fault", ["", "takes old chunks"])
def test_chunks_of_the_old_request_do_not_pass_for_those_of_the_rooms_new_one(raised: Raise, fault: str) -> None:
    """Its last chunk is still queued when the room is used again, and decode's same endpoint takes part: the worker
    would find the room alive, write the old KV where the new one belongs, and report Success."""
    scene = raised(fault=fault)
    scene.ranks[1].hold()
    scene.admit("a", ROOM, 8)
    scene.ranks.iterate(times=3)
    scene.ranks[1].begun(1)
    scene.ranks[0].settled()
    scene.ranks.abort("a")
    assert scene.inflight() == ["a"]

    scene.decode.pages.pop(ROOM)
    scene.admit("c", ROOM, 8)
    scene.ranks[1].let_go()
    scene.ranks[1].settled()
    assert scene.succeeded(ROOM) == [1, 1 if fault else 0]  # rank 0 had sent all of the old one before the abort
    if fault:
        return
    scene.play()

    assert (scene.answers("a"), scene.answers("c")) == (ABORTED, FINISHED)
    assert scene.decode.holds("c", ROOM)
    assert scene.is_clean(ROOM)


@pytest.mark.parametrize("fault", ["", "reports for the new life"])
def test_a_write_of_the_old_request_does_not_report_for_the_rooms_new_one(raised: Raise, fault: str) -> None:
    """Its last chunk is in the middle of its write when the room is used again, at the same decode endpoint, which
    would take the Success for that of the new request."""
    scene = raised(fault=fault)
    scene.ranks[1].hold()
    scene.admit("a", ROOM, 4)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks[0].settled()
    scene.ranks.abort("a")
    scene.decode.pages.pop(ROOM)
    scene.admit("c", ROOM, 4)

    scene.ranks[1].let_go()
    scene.ranks[1].settled()
    assert scene.decode.ranks[1].hears() == ([(ROOM, 4, 1)] if fault else [])
    if fault:
        return
    scene.play()

    assert (scene.answers("a"), scene.answers("c")) == (FINISHED, FINISHED)
    assert scene.decode.holds("c", ROOM)
    assert scene.decode.ranks[1].hears() == [(ROOM, 4, 1)]
    assert scene.is_clean(ROOM)


def test_abort_by_prefix_ends_all_that_match_and_no_other(raised: Raise) -> None:
    scene = raised()
    parked(scene, "r1", ROOM)
    scene.admit("r2", ROOM + 1, 16)
    scene.ranks.iterate()
    scene.admit("r10", ROOM + 2, 4)
    scene.ranks.iterate()
    scene.ranks.admit("r11", ROOM + 3, 4)

    scene.ranks.abort("r1")
    assert [scene.told(ROOM + n) for n in range(4)] == [[0, 0], [0, 0], [1, 1], [1, 1]]

    scene.ranks[1].let_go()
    scene.play()
    assert [scene.answers(rid) for rid in ("r1", "r2", "r10", "r11")] == [ABORTED, FINISHED, DROPPED, ABORTED]
    assert [scene.told(ROOM + n) for n in range(4)] == [[1, 1], [0, 0], [1, 1], [1, 1]]
    assert scene.decode.holds("r2", ROOM + 1)
    assert scene.is_clean(*range(ROOM, ROOM + 4))


def in_every_queue(scene: Scene) -> None:
    """One request that has told decode Success at rank 0 and is held at rank 1, one held at both, one whose last
    chunk was just computed, one between chunks, one waiting, one that decode has not shaken hands for."""
    scene.ranks[1].hold()
    scene.admit("first", ROOM, 4)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks[0].settled()
    scene.ranks[0].hold()
    scene.admit("held", ROOM + 1, 4)
    scene.ranks.iterate(times=2)
    scene.ranks[0].begun(2)
    scene.ranks.iterate(Admit("last", ROOM + 2, 4), Admit("chunked", ROOM + 3, 12), Admit("waiting", ROOM + 4, 4))
    for room, tokens in ((ROOM + 2, 4), (ROOM + 3, 12), (ROOM + 4, 4)):
        scene.decode.shake(room, tokens)
    scene.ranks.iterate()
    scene.ranks.admit("unmet", ROOM + 5, 4)


def test_abort_all_with_requests_in_every_queue(raised: Raise) -> None:
    scene = raised()
    in_every_queue(scene)
    queues = scene.ranks.agreed("queues")
    assert queues == {
        "bootstrap": ["unmet"],
        "waiting": ["waiting"],
        "chunked": ["chunked"],
        "running": ["chunked"],
        "inflight": ["first", "held", "last"],
    }

    scene.ranks.iterate(Abort(everything=True))
    scene.ranks.iterate(times=2)
    assert scene.inflight() == ["first", "held", "last"]
    assert [scene.told(ROOM + n) for n in range(6)] == [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [1, 1]]

    scene.ranks.each("let_go")
    scene.play()
    rids = ("first", "held", "last", "chunked", "waiting", "unmet")
    assert [len(scene.answers(rid)) for rid in rids] == [1] * 6
    assert scene.answers("first") == FINISHED
    assert scene.is_clean(*range(ROOM, ROOM + 6))


def test_two_aborts_of_one_request(raised: Raise) -> None:
    """In one batch of input, and again while it is parked, and again when it is gone."""
    scene = raised()
    scene.ranks[1].hold()
    scene.admit("a", ROOM, 12)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks.iterate(Abort("a"), Abort("a"))
    scene.ranks.abort("a")
    assert scene.inflight() == ["a"]

    scene.ranks[1].let_go()
    scene.play()
    scene.ranks.abort("a")

    assert scene.answers("a") == ABORTED
    assert scene.told(ROOM) == [1, 1]
    assert scene.is_clean(ROOM)
