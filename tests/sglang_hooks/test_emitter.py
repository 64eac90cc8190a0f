"""Emitter on real AF_UNIX streams: nothing waits in the caller's thread, nothing that still lives is lost."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_hooks import emitter as emitter_module
from sglang_hooks import outlet
from sglang_hooks.contain import FAULTS
from sglang_hooks.rank import Rank
from sidecar.model import (
    DecodeEndpoint,
    DecodeHandshake,
    Refusal,
    RoomConcluded,
    RoomOpened,
    Settled,
    TerminalStatus,
    Welcome,
)
from tests.sglang_hooks.doubles import LIMIT_S, ScriptedSidecar

D1 = DecodeEndpoint("127.0.0.1", 7001)

MakeRank = Callable[..., Rank]


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def test_hello_then_facts_in_order(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        hello = sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        for room in range(100):
            rank.open(room)
        rank.emitter.flush()

        assert list(range(100)) == [fact.room for fact in sidecar.hear(100) if isinstance(fact, RoomOpened)]
        assert hello.role == "prefill"


def test_what_happened_before_the_sidecar_came_is_replayed(make_rank: MakeRank, socket_path: Path) -> None:
    rank = make_rank(started=True)
    life = rank.open(1)
    rank.meet(1, D1, "s")
    rank.release(life, "Aborted")

    with ScriptedSidecar(socket_path) as sidecar:
        assert isinstance(sidecar.hear(3)[-1], RoomConcluded)


def test_a_successor_hears_what_is_not_settled(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        lives = [rank.open(room) for room in (1, 2)]
        for life in lives:
            rank.meet(life.room, D1, "s")
            rank.release(life, "Aborted")
        sidecar.hear(6)
        sidecar.reply(Settled(1, lives[0].number, D1))
        wait_until(lambda: not lives[0].owed, "the settled notice was not taken note of")

    with ScriptedSidecar(socket_path) as successor:
        told = successor.hear(3)
        assert {2} == {fact.room for fact in told if isinstance(fact, RoomOpened | RoomConcluded)}


def test_a_sidecar_that_does_not_read_blocks_nobody(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP of the sidecar: the queue is bounded and kept, what does not fit is counted, and a new stream replays
    what lives."""
    monkeypatch.setattr(outlet, "UNSENT_LIMIT", 1_000)
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        slowest_s = 0.0
        for room in range(60_000):
            begin = time.monotonic()
            rank.release(rank.open(room), "Aborted")
            slowest_s = max(slowest_s, time.monotonic() - begin)
            if rank.emitter.traffic.facts_dropped:
                break

        assert rank.emitter.traffic.facts_dropped > 0
        assert slowest_s < 1.0
        sidecar.read_on()
        queued = sidecar.hear(1_000)[:1_000]
        assert [fact.room for fact in queued if isinstance(fact, RoomConcluded)] == list(range(500))
        again = sidecar.meet(2)
        wait_until(lambda: rank.emitter.traffic.connects == 2, "no second stream")
        assert again.facts_dropped == rank.emitter.traffic.facts_dropped
        assert [record.levelname for record in caplog.records if "did not read" in record.message] == ["WARNING"]


def test_a_queue_that_was_full_when_nobody_came_has_lost_nothing(make_rank: MakeRank, socket_path: Path) -> None:
    """Found full by the emitter thread, and taken by the sidecar before the next fact: no new stream is needed."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        emitter = rank.emitter
        with emitter._sending:  # noqa: SLF001 - it is found full
            for room in range(3):
                rank.open(room)
            emitter._unsent_limit = 2  # noqa: SLF001
            emitter._turn_away_if_full()  # noqa: SLF001
            assert not emitter.is_open
        emitter.flush()
        sidecar.hear(3)
        emitter._wake.ring()  # noqa: SLF001 - its thread looks

        wait_until(lambda: emitter.is_open, "it is not open again")
        rank.release(rank.open(3), "Aborted")
        assert isinstance(sidecar.hear(5)[-1], RoomConcluded)
        assert (emitter.traffic.connects, emitter.traffic.facts_dropped) == (1, 0)


def test_a_sidecar_that_does_not_read_is_waited_for_without_trying_again_and_again(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring for each vain attempt would have the emitter thread try at once again: a whole core, and half of the
    scheduler's GIL, for as long as a sidecar is stopped."""
    rings: list[str] = []
    looked = threading.Event()
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        wake = rank.emitter._wake  # noqa: SLF001 - what it is about
        ring, silence = wake.ring, wake.silence
        monkeypatch.setattr(wake, "ring", lambda: (rings.append(threading.current_thread().name), ring()))
        monkeypatch.setattr(wake, "silence", lambda: (silence(), looked.set()))
        room = 0
        while not rings:
            rank.release(rank.open(room), "Aborted")
            room += 1
        assert looked.wait(LIMIT_S)
        for later in range(room, room + 1_000):
            rank.release(rank.open(later), "Aborted")

        assert {threading.current_thread().name} == set(rings)
        assert len(rings) < 10  # one each time that the kernel had taken all in between
        sidecar.read_on()
        assert [fact.room for fact in sidecar.hear(2) if isinstance(fact, RoomConcluded)][:1] == [0]
        wait_until(lambda: not rank.emitter._unsent, "what was left over is not sent")  # noqa: SLF001


def test_what_is_posted_while_the_emitter_thread_catches_up_is_sent_by_it(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its last send and its letting go another thread posts, finds it sending, and leaves it at that. No later
    fact and no ring comes to the rescue."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        emitter = rank.emitter
        room = 0
        while not emitter._is_stuck:  # noqa: SLF001 - what it is about
            rank.release(rank.open(room), "Aborted")
            room += 1
        send_some, posted, rung = emitter._send_some, threading.Event(), threading.Event()  # noqa: SLF001

        def send_and_be_overtaken() -> bool:
            was_stuck = emitter._is_stuck  # noqa: SLF001
            took_all = send_some()
            if took_all and was_stuck and not posted.is_set():
                other = threading.Thread(target=lambda: rank.release(rank.open(room), "the last one"))
                other.start()
                other.join(LIMIT_S)
                posted.set()
            return took_all

        monkeypatch.setattr(emitter, "_send_some", send_and_be_overtaken)
        monkeypatch.setattr(emitter._wake, "ring", rung.set)  # noqa: SLF001
        sidecar.read_on()

        assert posted.wait(LIMIT_S), "the emitter thread has not caught up"
        wait_until(lambda: not emitter._unsent and not emitter._is_stuck, "it is left lying")  # noqa: SLF001
        told = sidecar.hear(2 * (room + 1))
        assert [fact.cause for fact in told if isinstance(fact, RoomConcluded)][-1] == "the last one"
        assert not rung.is_set()


def test_after_a_success_took_what_was_stuck_nothing_is_left_to_the_emitter_thread(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel was full; before the emitter thread has its turn there is room, and a transfer worker sends all. That
    thread finds nothing to wait for: the next fact must not wait for it."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        monkeypatch.setattr(rank.emitter._wake, "ring", lambda: None)  # noqa: SLF001 - its thread is late
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        room = 0
        while not rank.emitter._is_stuck:  # noqa: SLF001 - what it is about
            rank.release(rank.open(room), "Aborted")
            room += 1
        last = [rank.open(room + 1), rank.open(room + 2)]
        sidecar.read_on()
        sidecar.hear(2 * room - 2)  # all but what is stuck
        rank.succeeded(last[0])
        sidecar.hear(2 * room + 3)

        rank.release(last[1], "the last one")

        told = sidecar.hear(2 * room + 4)
        assert isinstance(told[-1], RoomConcluded)
        assert told[-1].cause == "the last one"


def test_a_success_is_in_the_kernel_before_it_is_pushed(make_rank: MakeRank, socket_path: Path) -> None:
    """Whatever dies next: what `succeeded` has returned for can be read from the stream."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        life = rank.open(1)
        rank.succeeded(life)

        assert not rank.emitter._unsent  # noqa: SLF001 - the claim itself
        assert rank.emitter.traffic.facts_sent == 2
        last = sidecar.hear(2)[-1]
        assert isinstance(last, RoomConcluded)


def test_a_success_that_did_not_fit_the_queue_ends_the_stream(
    make_rank: MakeRank, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dropped with all that is queued: nothing of it is in the kernel."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        monkeypatch.setattr(rank.emitter._wake, "ring", lambda: None)  # noqa: SLF001 - its thread is late
        monkeypatch.setattr(rank.emitter, "_unsent_limit", 0)
        life = rank.open(1)
        rank.emitter._turn_away_if_full()  # noqa: SLF001 - as the emitter's thread does
        rank.succeeded(life)

        sidecar.meet(2)


def test_a_success_that_the_sidecar_does_not_take_ends_the_stream(make_rank: MakeRank, socket_path: Path) -> None:
    """A sidecar that would take the room for open must not see this process die on that stream."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        room = 0
        while rank.emitter.traffic.connected and not rank.emitter._given_up and room < 60_000:  # noqa: SLF001
            life = rank.open(room)
            rank.succeeded(life)
            room += 1
        assert rank.emitter._given_up  # noqa: SLF001
        sidecar.read_on()
        sidecar.meet(2)


def test_facts_of_many_threads_are_all_sent(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        threads = [
            threading.Thread(target=lambda first=first: [rank.meet(first + k, D1, "s") for k in range(500)])
            for first in (0, 1_000, 2_000)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)

        facts = sidecar.hear(1_500)
        assert sorted(fact.seq for fact in facts) == [fact.seq for fact in facts]


def test_a_request_alone_wakes_nobody_and_goes_with_its_handshake(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        rank.open(7)
        assert rank.emitter.traffic.facts_sent == 0

        rank.meet(7, D1, "s")

        assert [RoomOpened, DecodeHandshake] == [type(fact) for fact in sidecar.hear(2)]


def test_a_request_in_a_room_that_has_ended_before_is_told_at_once(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        rank.release(rank.open(7), "Aborted")
        rank.open(7)

        assert [RoomOpened, RoomConcluded, RoomOpened] == [type(fact) for fact in sidecar.hear(3)]


def test_an_absent_sidecar_is_said_once(
    make_rank: MakeRank, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter_module, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(emitter_module, "RETRY_LAST_S", 0.001)
    with caplog.at_level(logging.WARNING, "pd_sidecar"):
        rank = make_rank(started=True, why_absent="none can be started: permission denied")
        wait_until(lambda: rank.emitter.traffic.failures > 5, "it gave up trying")

    assert len(caplog.records) == 1
    assert "permission denied" in caplog.text
    assert "permission denied" in rank.report()["stream"]["last_failure"]


@pytest.mark.parametrize("answer", [Refusal("your uid is not mine"), Welcome(999, "epoch")])
def test_a_refusal_is_a_failure_with_its_reason(
    make_rank: MakeRank, socket_path: Path, answer: Refusal | Welcome
) -> None:
    with ScriptedSidecar(socket_path, first_reply=answer):
        rank = make_rank(started=True)
        wait_until(lambda: rank.emitter.traffic.failures > 0, "the refusal went unnoticed")

    assert not rank.emitter.traffic.connected
    assert ("your uid" in rank.emitter.traffic.last_failure) or ("999" in rank.emitter.traffic.last_failure)


def test_junk_from_the_socket_ends_the_stream_only(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        stream = sidecar._stream  # noqa: SLF001 - our own double
        assert isinstance(stream, socket.socket)
        stream.sendall(b"\xff" * 64)

        sidecar.meet(2)
        wait_until(lambda: rank.emitter.traffic.connects == 2, "no second stream")


def test_a_fact_of_which_no_frame_can_be_made_takes_no_other_with_it(make_rank: MakeRank, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        rank = make_rank(started=True)
        sidecar.meet()
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        before = FAULTS["Outlet._next_part"]
        lives = [rank.open(room) for room in (1, 2)]
        with rank.lock:
            rank.emitter.post(RoomConcluded(99, 1, 1, TerminalStatus.FAILED, "\ud800", drained=True, at_s=1.0))
        rank.release(lives[1], "Aborted")

        assert [RoomOpened, RoomOpened, RoomConcluded] == [type(fact) for fact in sidecar.hear(3)]
        assert FAULTS["Outlet._next_part"] == before + 1
