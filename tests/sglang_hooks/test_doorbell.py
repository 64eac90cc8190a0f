"""What the sidecar is woken for: what it has to act on at once, and what would else find no room in the kernel."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_hooks.outlet import RING_EVERY
from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, DecodeEndpoint, RoomConcluded, TerminalStatus, Welcome
from tests.sglang_hooks.doubles import LIMIT_S, Bell, ScriptedSidecar
from tests.sglang_hooks.test_emitter import wait_until

D1 = DecodeEndpoint("127.0.0.1", 7001)
LISTENS = Welcome(PROTOCOL, "epoch", doorbell=True)

MakeRank = Callable[..., Rank]


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


@pytest.fixture
def sidecar(socket_path: Path, bell: Bell) -> Iterator[ScriptedSidecar]:
    with ScriptedSidecar(socket_path, first_reply=LISTENS, handed_out=bell.descriptor) as running:
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
    with ScriptedSidecar(socket_path, first_reply=LISTENS, handed_out=bell.descriptor) as sidecar:
        make_rank(started=True)

        assert not sidecar.meet(2).rings


def test_a_descriptor_that_is_no_doorbell_is_not_written_to(make_rank: MakeRank, socket_path: Path) -> None:
    """A full pipe would block the thread that rings."""
    read, write = os.pipe()
    try:
        with ScriptedSidecar(socket_path, first_reply=LISTENS, handed_out=write) as sidecar:
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
