"""The decode half: what it adds to what decode says and hears, and that decode without it loses nothing."""

import threading
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.causes import GENERIC
from sglang_hooks.contain import FAULTS
from sglang_hooks.decode.half import NOBLOCK, DecodeHalf, PrefillLine
from sglang_hooks.decode.side import DecodeSide
from sglang_hooks.messages.values import Family
from sidecar.wire.decode_half import MAGIC_INDEX, acknowledged_room, announced
from tests.sglang_hooks.decode_double import (
    FAILED,
    METADATA,
    REGISTRATION,
    ROOM,
    SUCCESS,
    WAITING,
    Bench,
    NoMoreError,
    OldManager,
    PrefillSocket,
)

NOTICE = [b"%d" % ROOM, b"0", b"0", b"DRAINED_ABORT: input too long", b"400"]


# -- what decode says


def test_it_is_announced_on_the_registration_and_nowhere_else() -> None:
    bench = Bench()
    bench.open()

    (registration, _), (metadata, _) = bench.prefill[0].sent
    said = announced(registration)
    assert said is not None
    assert (said.frames, said.decode_half) == (len(REGISTRATION), "0.5.18")
    assert registration[: len(REGISTRATION)] == REGISTRATION
    assert metadata == METADATA


@pytest.mark.parametrize("guard", [b"NixlMsgGuard", b"MoriMsgGuard"])
def test_it_is_announced_behind_a_guard(guard: bytes) -> None:
    half, socket = DecodeHalf("0.5.23"), PrefillSocket()
    with socket.lock:
        PrefillLine(socket, socket.lock, half).send_multipart([guard, *REGISTRATION])

    said = announced(socket.sent[0][0])
    assert said is not None
    assert said.frames == len(REGISTRATION) + 1


def test_a_registration_of_a_future_that_is_too_long_goes_as_it_is() -> None:
    half, socket = DecodeHalf("0.5.99"), PrefillSocket()
    long = [*REGISTRATION, *[b"x"] * MAGIC_INDEX]
    with socket.lock:
        PrefillLine(socket, socket.lock, half).send_multipart(long)

    assert socket.sent == [(long, 0)]
    assert FAULTS["DecodeHalf._announced"] > 0


def test_a_line_is_the_socket_in_all_else() -> None:
    socket = PrefillSocket()
    line = PrefillLine(socket, socket.lock, DecodeHalf("0.5.18"))
    assert line.closed is False
    assert line == PrefillLine(socket, socket.lock, DecodeHalf("0.5.18"))
    assert line != socket


# -- what decode hears


def test_an_old_mooncake_gets_three_frames_and_the_cause_is_kept() -> None:
    """A fourth frame would end its thread for good."""
    bench = Bench()
    bench.open()

    assert bench.hear(NOTICE) == [NOTICE[:3]]
    assert bench.half is not None
    assert (bench.half.cause(ROOM), bench.half.http_status(ROOM)) == ("input too long", 400)


@pytest.mark.parametrize("family", [Family.MOONCAKE, Family.MORI])
def test_a_newer_one_gets_all_of_it(family: Family) -> None:
    bench = Bench(family, old=False)
    bench.open()
    notice = NOTICE if family is Family.MOONCAKE else [b"MoriMsgGuard", *NOTICE]
    assert bench.hear(notice) == [notice]


def test_decodes_record_says_prefills_first_cause() -> None:
    """Stock up to 0.5.19 records words of its own while it handles the message."""
    bench = Bench(ranks=2)
    bench.open()
    recorded: list[str] = []

    def handle() -> None:
        bench.manager.record_failure(ROOM, "Failed to get kvcache from prefill instance, it might be dead")
        recorded.append(bench.manager.failure_records[ROOM])

    for rank, words in ((b"0", b"DRAINED_ABORT: input too long"), (b"1", b"DRAINED_ABORT: another rank failed")):
        bench.manager.arriving = [[b"%d" % ROOM, b"0", rank, words]]
        bench.manager.server_socket.recv_multipart()
        handle()

    assert recorded == ["input too long"] * 2


def test_a_timeout_keeps_its_own_cause() -> None:
    """The scheduler's thread records it, whatever the control thread has in hand."""
    bench = Bench()
    bench.open()
    bench.manager.arriving = [NOTICE]
    bench.manager.server_socket.recv_multipart()
    other = threading.Thread(target=bench.manager.record_failure, args=(ROOM, "timed out"))
    other.start()
    other.join()

    assert bench.manager.failure_records[ROOM] == "timed out"


def test_a_status_of_stock_prefill_is_left_alone() -> None:
    bench = Bench()
    bench.open()
    bare = [b"%d" % ROOM, b"0", b"0"]
    assert bench.hear(bare) == [bare]
    bench.manager.record_failure(ROOM, "stock's words")
    assert bench.manager.failure_records[ROOM] == "stock's words"
    assert bench.acks() == []


def test_a_late_notice_leaves_no_cause_behind() -> None:
    """Stock up to 0.5.19 records it for the room's next request."""
    bench = Bench()
    bench.open()
    del bench.manager.request_status[ROOM]

    assert bench.hear(NOTICE) == []
    assert bench.manager.failure_records == {}
    assert bench.half is not None
    assert bench.half.counts.late == 1
    assert len(bench.acks()) == 1


def test_a_newer_one_drops_late_statuses_itself() -> None:
    bench = Bench(old=False)
    assert bench.hear(NOTICE) == [NOTICE]


# -- acknowledgements


def test_a_notice_is_acknowledged_once_stock_has_handled_it() -> None:
    bench = Bench()
    bench.open()
    bench.manager.arriving = [NOTICE]
    bench.manager.server_socket.recv_multipart()
    assert bench.acks() == []

    bench.hear()
    frames, flags = bench.prefill[0].sent[-1]
    assert acknowledged_room(frames) == ROOM
    assert frames[: len(REGISTRATION)] == REGISTRATION
    assert flags == NOBLOCK


def test_one_notice_is_acknowledged_to_every_prefill_rank_of_the_room() -> None:
    bench = Bench(ranks=3)
    bench.open()
    bench.hear(*([*NOTICE[:2], b"%d" % rank, *NOTICE[3:]] for rank in range(3)))

    assert [len(bench.acks(rank)) for rank in range(3)] == [1, 1, 1]
    assert bench.half is not None
    assert bench.half.reports(ROOM) == 3


def test_a_rank_that_says_it_again_is_told_again() -> None:
    bench = Bench()
    bench.open()
    bench.hear(NOTICE, NOTICE)
    assert len(bench.acks()) == 2


@pytest.mark.parametrize("trouble", ["closed", "is_full"])
def test_an_acknowledgement_that_cannot_be_sent_is_counted(trouble: str) -> None:
    bench = Bench()
    bench.open()
    setattr(bench.prefill[0], trouble, True)
    bench.hear(NOTICE)

    assert bench.half is not None
    assert (bench.half.counts.acknowledged, bench.half.counts.acknowledgements_lost) == (0, 1)
    assert not bench.prefill[0].lock.locked()


def test_it_waits_for_nobody_who_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_hooks.decode.half.LOCK_LIMIT_S", 0.01)
    bench = Bench()
    bench.open()
    with bench.prefill[0].lock:
        bench.hear(NOTICE)
    assert bench.half is not None
    assert bench.half.counts.acknowledgements_lost == 1


def test_the_next_request_of_a_room_starts_clean() -> None:
    bench = Bench()
    bench.open()
    bench.hear(NOTICE)
    bench.open()

    assert bench.half is not None
    assert (bench.half.cause(ROOM), bench.half.reports(ROOM)) == ("", 0)


# -- NIXL up to 0.5.19, which reads no status


def test_an_old_nixl_is_failed_by_the_half() -> None:
    bench = Bench(Family.NIXL)
    bench.manager.enable_staging = True
    bench.open()
    assert bench.hear([b"KV_STATUS", *NOTICE]) == []

    assert bench.manager.request_status[ROOM] == FAILED
    assert bench.manager.failure_records[ROOM] == "input too long"
    assert len(bench.acks()) == 1


def test_a_notice_without_words_fails_it_too() -> None:
    bench = Bench(Family.NIXL)
    bench.manager.enable_staging = True
    bench.open()
    bench.hear([b"KV_STATUS", b"%d" % ROOM, b"0", b"0"])
    assert bench.manager.failure_records[ROOM] == GENERIC


@pytest.mark.parametrize("status", [b"4", b"2"])
def test_only_a_failure_does(status: bytes) -> None:
    bench = Bench(Family.NIXL)
    bench.manager.enable_staging = True
    bench.open()
    bench.manager.request_status[ROOM] = WAITING
    bench.hear([b"KV_STATUS", b"%d" % ROOM, status, b"0"])
    assert bench.manager.request_status[ROOM] == WAITING


def test_without_a_thread_of_stocks_one_is_started() -> None:
    """It reads until the socket is gone."""
    bench = Bench(Family.NIXL)
    bench.manager.update_status(ROOM - 1, 1)
    reader = bench.control._reader  # noqa: SLF001 - there is no other way to wait for its end
    assert reader is not None
    reader.join(10.0)
    assert not reader.is_alive()
    assert bench.control.gate.is_used


@pytest.mark.parametrize(
    ("attribute", "value"), [("enable_staging", True), ("enable_deferred_decode_kv_release", True)]
)
def test_with_one_none_is(attribute: str, value: bool) -> None:
    bench = Bench(Family.NIXL)
    setattr(bench.manager, attribute, value)
    vars(bench.manager)["_start_decode_listener_thread"] = lambda: None
    bench.manager.update_status(ROOM, 1)
    assert bench.control._reader is None  # noqa: SLF001


# -- the guard, which is there without the half as well


@pytest.mark.parametrize("has_half", [True, False], ids=["half", "guard"])
def test_junk_is_dropped_and_counted(has_half: bool) -> None:
    bench = Bench(has_half=has_half)
    assert bench.hear([b"HELLO"], [b"1", b"0"], [b"CHUNK_READY", *[b"1"] * 5]) == []
    assert (bench.control.junk["unknown_tag"], bench.control.junk["too_short"]) == (1, 1)
    assert bench.control.junk["mismatched"] == 1


def test_without_the_half_an_old_one_is_told_all_the_same() -> None:
    bench = Bench(has_half=False)
    assert bench.hear(NOTICE) == [NOTICE[:3]]
    assert bench.hear([b"KV_STATUS", *NOTICE]) == []
    assert bench.manager.failure_records == {}


@pytest.mark.parametrize(
    ("buffer_index", "aux_index", "size", "fits"),
    [(0, 0, 16, True), (1, 9, 8, True), (1, 9, 9, False), (2, 0, 1, False), (-1, 0, 1, False), (0, -1, 1, False)],
)
def test_output_metadata_stays_inside_its_buffer(buffer_index: int, aux_index: int, size: int, fits: bool) -> None:
    """Stock writes to whatever address comes out, which ends the process."""
    bench = Bench()
    frames = [b"AUX_DATA", b"1", b"%d" % buffer_index, b"%d" % aux_index, size.to_bytes(4, "big"), bytes(size)]
    assert bench.hear(frames) == ([frames] if fits else [])


def test_a_success_that_comes_before_its_room_is_counted_is_dropped() -> None:
    """Stock up to 0.5.19 looks up how many ranks to wait for, and its thread ends if there is no such entry."""
    bench = Bench()
    bench.open()
    success = [b"%d" % ROOM, b"%d" % SUCCESS, b"0"]
    assert bench.hear(success) == []
    bench.manager.required_prefill_response_num_table[ROOM] = 1
    assert bench.hear(success) == [success]


def test_a_fault_of_ours_lets_stock_have_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_hooks.decode.control.read_for_decode", lambda *_: 1 / 0)
    bench = Bench()
    assert bench.hear(NOTICE[:3]) == [NOTICE[:3]]


# -- the plugin's part


class MooncakeKVManager(OldManager):
    """By name, as sglang's."""


def attached(*, has_half: bool = True) -> tuple[DecodeSide, MooncakeKVManager]:
    side, manager = DecodeSide(has_half=has_half, sglang="0.5.18"), MooncakeKVManager()
    side.attach(manager)
    return side, manager


def failed_with(side: DecodeSide, status: int, room: int | None = ROOM) -> Any:
    answers: list[Any] = []

    def prepare_abort(_req: Any, _message: str, status_code: Any = None) -> None:
        answers.append(status_code)

    side.around_failed_request(prepare_abort, SimpleNamespace(bootstrap_room=room), "failed", status_code=status)
    return answers[0]


def test_the_client_gets_prefills_status() -> None:
    side, manager = attached()
    manager.update_status(ROOM, 1)
    manager.arriving = [NOTICE]
    manager.server_socket.recv_multipart()

    assert failed_with(side, HTTPStatus.INTERNAL_SERVER_ERROR) == 400


def test_other_failures_keep_theirs() -> None:
    side, manager = attached()
    manager.update_status(ROOM, 1)
    assert failed_with(side, HTTPStatus.INTERNAL_SERVER_ERROR) == 500
    manager.arriving = [NOTICE]
    manager.server_socket.recv_multipart()
    assert failed_with(side, HTTPStatus.SERVICE_UNAVAILABLE) == 503
    assert failed_with(side, HTTPStatus.INTERNAL_SERVER_ERROR, room=None) == 500
    assert failed_with(DecodeSide(has_half=True, sglang=""), HTTPStatus.INTERNAL_SERVER_ERROR) == 500


def test_connections_are_seen_through_once_a_manager_is_attached() -> None:
    side, _ = attached()
    socket = PrefillSocket()
    line, lock = side.around_connection(lambda _info: (socket, socket.lock), {})
    assert isinstance(line, PrefillLine)
    assert lock is socket.lock

    unattached = DecodeSide(has_half=True, sglang="0.5.18")
    assert unattached.around_connection(lambda _info: (socket, socket.lock), {}) == (socket, socket.lock)


def test_switched_off_it_hooks_nothing_and_says_so() -> None:
    side, _ = attached(has_half=False)
    assert side.around_hooks() == {}
    assert "half" not in side.report()
    assert len(DecodeSide(has_half=True, sglang="").around_hooks()) == 2


def test_server_info_has_the_counts() -> None:
    side, manager = attached()
    manager.arriving = [[b"HELLO"]]
    with pytest.raises(NoMoreError):
        manager.server_socket.recv_multipart()
    state = SimpleNamespace(internal_state={})
    side.after_internal_state(state)

    assert state.internal_state["pd_sidecar"]["junk"]["unknown_tag"] == 1
    assert state.internal_state["pd_sidecar"]["role"] == "decode"


def test_a_backend_that_is_not_known_is_left_alone() -> None:
    side = DecodeSide(has_half=True, sglang="0.5.18")
    manager = OldManager()
    side.attach(manager)
    assert side.control is None
    assert "record_failure" not in vars(manager)
