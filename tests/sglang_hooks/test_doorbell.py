"""What the sidecar is woken for: what it has to act on at once, and what would else find no room in the kernel."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from sglang_hooks.outlet import RING_EVERY
from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, DecodeEndpoint, RoomConcluded, TerminalStatus, Welcome
from sidecar.wire.memory_pipe import PIPE_BYTES
from tests.sglang_hooks.doubles import LIMIT_S, Bell, ScriptedSidecar
from tests.sglang_hooks.test_emitter import wait_until

D1 = DecodeEndpoint("127.0.0.1", 7001)
LISTENS = Welcome(PROTOCOL, "epoch", doorbell=True)
SHARES = structs.replace(LISTENS, shares_memory=True)

MakeRank = Callable[..., Rank]


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


@pytest.fixture(params=["stream", "memory"])
def sidecar(socket_path: Path, bell: Bell, request: pytest.FixtureRequest) -> Iterator[ScriptedSidecar]:
    """Reads what is said from the stream, or from memory."""
    shares = request.param == "memory"
    with ScriptedSidecar(
        socket_path, first_reply=SHARES if shares else LISTENS, handed_out=[bell.descriptor], shares_memory=shares
    ) as running:
        yield running


@pytest.fixture
def sharing(socket_path: Path, bell: Bell) -> Iterator[ScriptedSidecar]:
    with ScriptedSidecar(socket_path, first_reply=SHARES, handed_out=[bell.descriptor], shares_memory=True) as running:
        yield running


@pytest.fixture
def rank(make_rank: MakeRank, sidecar: ScriptedSidecar, bell: Bell) -> Rank:
    """Connected, and what was rung for at first is over."""
    made = make_rank(started=True)
    assert sidecar.meet().rings
    wait_until(lambda: made.emitter.traffic.connected, "never connected")
    assert bell.rings() == 1
    return made


def test_a_request_that_goes_well_rings_for_nothing(rank: Rank, sidecar: ScriptedSidecar, bell: Bell) -> None:
    life = rank.open(1)
    rank.meet(1, D1, "s")
    rank.succeeded(life)
    rank.release(life, "")

    sidecar.hear(3)
    assert bell.rings() == 0


def test_an_end_is_rung_for_once(rank: Rank, sidecar: ScriptedSidecar, bell: Bell) -> None:
    life = rank.open(1)
    rank.meet(1, D1, "s")
    rank.release(life, "Aborted")

    assert bell.rings() == 1
    sidecar.hear(3)


def test_what_an_ended_room_hears_is_rung_for(rank: Rank, bell: Bell) -> None:
    rank.release(rank.open(1), "Aborted")
    bell.rings()

    assert rank.meet(1, D1, "s")  # late
    assert bell.rings() == 1
    rank.decode_aborted(1, D1)
    assert bell.rings() == 1
    rank.open(1)  # nothing older may be used against it
    assert bell.rings() == 1


def test_the_kernel_is_not_left_to_fill_up(rank: Rank, sidecar: ScriptedSidecar, bell: Bell) -> None:
    """A Success must find room there at once, else the stream is broken off."""
    for room in range(RING_EVERY - 1):
        rank.meet(room, D1, "s")
    assert bell.rings() == 0
    rank.meet(RING_EVERY, D1, "s")

    assert bell.rings() == 1
    sidecar.hear(RING_EVERY)


def test_a_full_kernel_is_rung_for(
    rank: Rank, sidecar: ScriptedSidecar, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is to make room has to know."""
    monkeypatch.setattr("sglang_hooks.outlet.RING_EVERY", 1_000_000)
    sidecar._reads.clear()  # noqa: SLF001 - our own double
    room = 0
    while not rank.emitter._is_stuck:  # noqa: SLF001 - what it is about
        rank.meet(room, D1, "s")
        room += 1

    assert bell.rings() >= 1
    sidecar.read_on()
    sidecar.hear(room)


def test_what_another_thread_has_sent_is_rung_for_by_who_posted_it(
    rank: Rank, sidecar: ScriptedSidecar, bell: Bell
) -> None:
    """Between its post and its flush the fact goes with somebody's Success, which rings for nothing."""
    life = rank.open(1)
    rank.meet(1, D1, "s")
    with rank.lock:
        rank.emitter.post(rank.conclusion(life, TerminalStatus.FAILED))
    rank.emitter.flush(wakes=False)
    sidecar.hear(3)
    assert bell.rings() == 0

    rank.emitter.flush()

    assert bell.rings() == 1


@pytest.mark.parametrize("sends", [Rank.succeeded, lambda rank, life: rank.meet(life.room, D1, "s")])
def test_what_is_left_to_who_sends_for_nothing_urgent_is_sent_and_rung_for(
    rank: Rank,
    sidecar: ScriptedSidecar,
    bell: Bell,
    monkeypatch: pytest.MonkeyPatch,
    sends: Callable[[Rank, object], object],
) -> None:
    """It has found its queue empty and has not let go yet: another thread posts, finds it sending and goes its way.
    No later fact comes to the rescue."""
    emitter, left = rank.emitter, threading.Event()
    send_some = emitter._send_some  # noqa: SLF001 - what it is about

    def send_and_be_overtaken() -> bool:
        took_all = send_some()
        if not left.is_set():
            left.set()
            other = threading.Thread(target=lambda: rank.release(rank.open(2), "overtaken"))
            other.start()
            other.join(LIMIT_S)
        return took_all

    life = rank.open(1)
    monkeypatch.setattr(emitter, "_send_some", send_and_be_overtaken)
    sends(rank, life)

    assert left.is_set()
    told = sidecar.hear(4)
    assert [fact.cause for fact in told if isinstance(fact, RoomConcluded)][-1] == "overtaken"
    assert bell.rings() == 1


def test_a_doorbell_that_got_lost_is_done_without(make_rank: MakeRank, socket_path: Path) -> None:
    """Something between the two passes bytes on, and no descriptors. The sidecar would wait for rings in vain."""
    with ScriptedSidecar(socket_path, first_reply=LISTENS) as sidecar:
        rank = make_rank(started=True)
        assert sidecar.meet().rings
        assert not sidecar.meet(2).rings
        assert "doorbell" in rank.emitter.traffic.last_failure


def test_where_nobody_can_say_what_a_descriptor_is_it_is_done_without(
    make_rank: MakeRank, socket_path: Path, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proc(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr("sglang_hooks.doorbell.os.readlink", no_proc)
    with ScriptedSidecar(socket_path, first_reply=LISTENS, handed_out=[bell.descriptor]) as sidecar:
        make_rank(started=True)

        assert not sidecar.meet(2).rings


def test_a_descriptor_that_is_no_doorbell_is_not_written_to(make_rank: MakeRank, socket_path: Path) -> None:
    """A full pipe would block the thread that rings."""
    read, write = os.pipe()
    try:
        with ScriptedSidecar(socket_path, first_reply=LISTENS, handed_out=[write]) as sidecar:
            make_rank(started=True)
            assert not sidecar.meet(2).rings
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        os.close(read)
        os.close(write)


def test_a_sidecar_without_a_doorbell_is_written_to_as_ever(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        rank.release(rank.open(1), "Aborted")

        assert len(sidecar.hear(2)) == 2


def test_the_doorbell_goes_with_its_stream(rank: Rank, sidecar: ScriptedSidecar, bell: Bell) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sidecar.drop()
    sidecar.meet(2)
    wait_until(lambda: rank.emitter.traffic.connects == 2, "no second stream")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "a descriptor is left over")

    assert bell.is_rung()


# -- with memory


def fill(rank: Rank) -> int:
    """How many facts it took until nobody takes more."""
    room = 0
    while not rank.emitter._is_stuck:  # noqa: SLF001 - what it is about
        room += 1
        rank.meet(room, D1, "s")
    return room


def test_what_memory_has_no_room_for_goes_when_there_is(
    make_rank: MakeRank, sharing: ScriptedSidecar, bell: Bell
) -> None:
    rank = make_rank(started=True)
    assert sharing.meet().shares_memory
    wait_until(lambda: rank.emitter.traffic.connected, "never connected")
    sharing._reads.clear()  # noqa: SLF001 - our own double
    filled = fill(rank)
    for room in range(filled, 3 * filled):
        rank.meet(room + 1, D1, "s")
    assert bell.rings() > 1
    sharing.read_on()

    facts = sharing.hear(3 * filled)
    assert [fact.seq for fact in facts] == list(range(1, 3 * filled + 1))


def test_a_success_that_memory_has_no_room_for_breaks_the_stream(make_rank: MakeRank, sharing: ScriptedSidecar) -> None:
    rank = make_rank(started=True)
    wait_until(lambda: rank.emitter.traffic.connected, "never connected")
    sharing._reads.clear()  # noqa: SLF001 - our own double
    fill(rank)
    rank.succeeded(rank.open(0))
    assert not rank.emitter.is_open
    sharing.read_on()

    sharing.meet(2)
    wait_until(lambda: rank.emitter.traffic.connects == 2, "no second stream")
    rank.release(rank.open(-1), "Aborted")
    wait_until(lambda: any(fact.room == -1 for fact in sharing.hear(1)), "not heard on the second stream")


def test_a_replay_longer_than_the_memory_is_told_in_full(make_rank: MakeRank, sharing: ScriptedSidecar) -> None:
    rank = make_rank()
    for room in range(4_000):
        life = rank.open(room)
        rank.meet(room, D1, "session" * 8)
        rank.release(life, "Aborted")
    rank.emitter.start()
    try:
        assert len(sharing.hear(12_000)) == 12_000
    finally:
        rank.emitter.stop(limit_s=LIMIT_S)


def test_memory_that_got_lost_is_done_without(make_rank: MakeRank, socket_path: Path, bell: Bell) -> None:
    with ScriptedSidecar(socket_path, first_reply=SHARES, handed_out=[bell.descriptor]) as sidecar:
        rank = make_rank(started=True)
        assert sidecar.meet().shares_memory
        second = sidecar.meet(2)
        assert not second.rings
        assert not second.shares_memory
        assert "memory" in rank.emitter.traffic.last_failure


def test_memory_that_could_shrink_below_us_is_not_written_to(
    make_rank: MakeRank, socket_path: Path, bell: Bell
) -> None:
    """The kernel ends a process (SIGBUS) that touches what is no longer there."""
    memory = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, PIPE_BYTES)
    try:
        with ScriptedSidecar(socket_path, first_reply=SHARES, handed_out=[bell.descriptor, memory]) as sidecar:
            make_rank(started=True)
            assert not sidecar.meet(2).shares_memory
    finally:
        os.close(memory)


def test_where_stores_may_be_seen_out_of_order_no_memory_is_asked_for(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_hooks.emitter.KEEPS_ORDER", False)
    with ScriptedSidecar(socket_path) as sidecar:
        make_rank(started=True)
        assert sidecar.meet().rings
        assert not sidecar.meet().shares_memory


def test_nonsense_in_the_memory_ends_the_stream_and_nothing_else(make_rank: MakeRank, sharing: ScriptedSidecar) -> None:
    rank = make_rank(started=True)
    sharing.meet()
    wait_until(lambda: rank.emitter.traffic.connected, "never connected")
    assert sharing._pipe is not None  # noqa: SLF001 - our own double
    sharing._pipe._counters[8] = 2**40  # noqa: SLF001 - it has read what nobody wrote
    rank.meet(1, D1, "s")

    sharing.meet(2)
    wait_until(lambda: rank.emitter.traffic.connects == 2, "no second stream")
    rank.meet(2, D1, "s")
    assert {fact.room for fact in sharing.hear(2)} == {1, 2}
