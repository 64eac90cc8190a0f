"""Stock's own messages by way of the sidecar: who takes what, and who pushes what it does not take. Nobody waits."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_hooks import carrier as carrier_module
from sglang_hooks.carrier import OVERDUE_S, TAKE_WITHIN_S, Carrier
from sglang_hooks.rank import Rank
from sidecar.model import (
    PARCEL_BYTES_LIMIT,
    PROTOCOL,
    DecodeEndpoint,
    DecodeRegistered,
    Fact,
    ParcelGiven,
    ParcelRefused,
    ParcelsTaken,
    Welcome,
)
from tests.sglang_hooks.conftest import Clock
from tests.sglang_hooks.doubles import LIMIT_S, ScriptedSidecar

D1 = DecodeEndpoint("127.0.0.1", 7001)
URL = "tcp://127.0.0.1:7001"
TAKES = Welcome(PROTOCOL, "epoch", takes_parcels=True)

MakeRank = Callable[..., Rank]


def success(room: int) -> list[bytes]:
    return [b"%d" % room, b"4", b"0"]


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


class Stock:
    """In the place of stock's send: keeps which rooms were pushed, by which threads."""

    def __init__(self) -> None:
        self.pushed: list[int] = []
        self.threads: set[int] = set()
        self.free = threading.Event()
        self.free.set()

    def send(self, room: int) -> Callable[[], None]:
        def push() -> None:
            assert self.free.wait(LIMIT_S)
            self.threads.add(threading.get_ident())
            self.pushed.append(room)

        return push

    def await_pushed(self, *rooms: int) -> None:
        wait_until(lambda: self.pushed == list(rooms), f"stock was to push {rooms}, and has pushed {self.pushed}")


@pytest.fixture
def stock() -> Stock:
    return Stock()


def carrying(make_rank: MakeRank, *, connected: bool = True) -> tuple[Rank, Carrier]:
    rank = make_rank()
    rank.carry_statuses()
    rank.registered(D1, "s", 18)
    if connected:
        rank.emitter.start()
        wait_until(lambda: rank.emitter.is_open, "never connected")
    assert rank.carrier is not None
    return rank, rank.carrier


def give(carrier: Carrier, stock: Stock, room: int, *, may_block: bool = True) -> bool:
    return carrier.carry(URL, success(room), stock.send(room), may_block=may_block)


def parcels(facts: list[Fact]) -> list[ParcelGiven]:
    return [fact for fact in facts if isinstance(fact, ParcelGiven)]


def pushed_later(stock: Stock, clock: Clock) -> bool:
    clock.now_s += 1.0
    return stock.pushed == [1]


def test_a_status_goes_to_a_sidecar_that_takes_it(make_rank: MakeRank, socket_path: Path, stock: Stock) -> None:
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)

        assert give(carrier, stock, 42)
        [parcel] = parcels(sidecar.hear(2))
        rank.emitter.stop(limit_s=LIMIT_S)

    assert ParcelGiven(2, 42, D1, "s", (b"42", b"4", b"0"), 100.0 + TAKE_WITHIN_S) == parcel
    assert stock.pushed == []


def test_an_older_sidecar_is_sent_none(make_rank: MakeRank, socket_path: Path, stock: Stock) -> None:
    """It would break the stream over a fact that it does not know: stock pushes."""
    with ScriptedSidecar(socket_path) as sidecar:
        rank, carrier = carrying(make_rank)

        assert not give(carrier, stock, 42)
        assert parcels(sidecar.hear(1)) == []
        rank.emitter.stop(limit_s=LIMIT_S)


def test_without_a_sidecar_stock_pushes_in_the_callers_thread(make_rank: MakeRank, stock: Stock) -> None:
    _, carrier = carrying(make_rank, connected=False)

    assert not give(carrier, stock, 42)
    assert carrier.report()["stock_no_sidecar"] == 1


def test_the_scheduler_never_pushes_by_itself(make_rank: MakeRank, stock: Stock) -> None:
    """Stock's send may block for 30 s (`clear` acknowledges an abort, from 0.5.21)."""
    _, carrier = carrying(make_rank, connected=False)

    assert give(carrier, stock, 42, may_block=False)
    stock.await_pushed(42)
    assert threading.get_ident() not in stock.threads


def test_what_is_not_taken_in_time_is_pushed_by_stock(
    make_rank: MakeRank, socket_path: Path, stock: Stock, clock: Clock
) -> None:
    """The sidecar is stopped: stock pushes the rest too, in nobody's way, until the sidecar answers."""
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        give(carrier, stock, 1)
        give(carrier, stock, 2)
        clock.now_s += OVERDUE_S
        stock.await_pushed(1, 2)

        assert give(carrier, stock, 3)
        stock.await_pushed(1, 2, 3)

        sidecar.reply(ParcelRefused(2, "late"))
        sidecar.reply(ParcelsTaken(3))
        wait_until(lambda: carrier.report().get("refused") == 1, "no reply")
        wait_until(lambda: give(carrier, stock, 4), "the sidecar answers again")
        rank.emitter.stop(limit_s=LIMIT_S)

    assert threading.get_ident() not in stock.threads
    assert carrier.report()["overdue"] == 2


def test_what_is_refused_is_pushed_by_stock(make_rank: MakeRank, socket_path: Path, stock: Stock) -> None:
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        give(carrier, stock, 1)
        give(carrier, stock, 2)
        [_, _, second] = sidecar.hear(3)
        sidecar.reply(ParcelRefused(second.seq, "no_socket"))
        sidecar.reply(ParcelsTaken(second.seq))

        stock.await_pushed(2)
        wait_until(lambda: carrier.report()["kept"] == 1, "the first one is in the sidecar's care")
        rank.emitter.stop(limit_s=LIMIT_S)


def test_a_successor_is_given_what_was_taken_and_stock_what_was_not(
    make_rank: MakeRank, socket_path: Path, stock: Stock
) -> None:
    """Promise 9. What has ended is given to nobody."""
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        for room in (1, 2, 3):
            give(carrier, stock, room)
        first, second, _ = parcels(sidecar.hear(4))
        sidecar.reply(ParcelsTaken(second.seq, (first.seq,)))
        wait_until(lambda: carrier.report().get("ended") == 1, "no reply")
        sidecar.drop()

        stock.await_pushed(3)
        again = parcels(sidecar.hear(6))
        rank.emitter.stop(limit_s=LIMIT_S)

    assert [second] == again[3:]


def test_what_a_dead_sidecar_had_taken_does_not_wait_for_ever(
    make_rank: MakeRank, socket_path: Path, stock: Stock, clock: Clock
) -> None:
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        give(carrier, stock, 1)
        [parcel] = parcels(sidecar.hear(2))
        sidecar.reply(ParcelsTaken(parcel.seq))
        wait_until(lambda: not carrier.is_waiting, "no reply")
    socket_path.unlink()

    wait_until(lambda: pushed_later(stock, clock), "nobody has pushed it")
    rank.emitter.stop(limit_s=LIMIT_S)


def test_a_successor_that_takes_none_leaves_them_to_stock(
    make_rank: MakeRank, socket_path: Path, stock: Stock, clock: Clock
) -> None:
    """A sidecar may be replaced by an older one."""
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        give(carrier, stock, 1)
        [parcel] = parcels(sidecar.hear(2))
        sidecar.reply(ParcelsTaken(parcel.seq))
        wait_until(lambda: not carrier.is_waiting, "no reply")
    with ScriptedSidecar(socket_path) as older:
        older.meet()

        wait_until(lambda: pushed_later(stock, clock), "nobody has pushed it")
        assert [DecodeRegistered(1, D1, "s", 18)] == older.hear(1)
        rank.emitter.stop(limit_s=LIMIT_S)


def test_an_endpoint_that_is_sent_more_than_statuses_is_stocks_alone(make_rank: MakeRank, stock: Stock) -> None:
    """Its metadata and staged chunks have to come before the room's Success, and two ways keep no order."""
    _, carrier = carrying(make_rank, connected=False)
    carrier.carry(URL, [b"AUX_DATA", b"1", b"0"], stock.send(1), may_block=True)

    assert not give(carrier, stock, 1)
    assert carrier.report()["stock_order"] == 2


def test_too_many_endpoints_of_that_kind_leave_all_to_stock(
    make_rank: MakeRank, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier_module, "STRANGER_LIMIT", 0)
    _, carrier = carrying(make_rank, connected=False)
    for port in (1, 2):
        carrier.carry(f"tcp://127.0.0.1:{port}", [b"CHUNK_READY"], stock.send(1), may_block=True)

    assert not give(carrier, stock, 1)
    assert carrier.report()["stock_order"] == 3


@pytest.mark.parametrize(
    ("url", "frames", "reason"),
    [
        ("tcp://127.0.0.1:7002", success(1), "unregistered"),
        (URL, [*success(1), b"x" * PARCEL_BYTES_LIMIT], "size"),
    ],
)
def test_what_the_sidecar_could_not_take_is_not_given(
    make_rank: MakeRank, stock: Stock, url: str, frames: list[bytes], reason: str
) -> None:
    _, carrier = carrying(make_rank, connected=False)

    assert not carrier.carry(url, frames, stock.send(1), may_block=True)
    assert carrier.report()[f"stock_{reason}"] == 1


def test_an_address_that_is_none_is_stocks(make_rank: MakeRank, stock: Stock) -> None:
    _, carrier = carrying(make_rank, connected=False)

    assert not carrier.carry("ipc://x", success(1), stock.send(1), may_block=True)


def test_behind_what_stock_is_stuck_on_nobody_waits(make_rank: MakeRank, stock: Stock) -> None:
    _, carrier = carrying(make_rank, connected=False)
    stock.free.clear()
    give(carrier, stock, 1, may_block=False)

    assert give(carrier, stock, 2)

    stock.free.set()
    stock.await_pushed(1, 2)


def test_of_more_than_can_be_kept_the_sidecar_keeps_the_oldest_alone(
    make_rank: MakeRank, socket_path: Path, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier_module, "KEPT_LIMIT", 1)
    with ScriptedSidecar(socket_path, first_reply=TAKES) as sidecar:
        rank, carrier = carrying(make_rank)
        assert give(carrier, stock, 1)
        assert give(carrier, stock, 2)
        stock.await_pushed(2)
        sidecar.reply(ParcelsTaken(2))
        wait_until(lambda: not carrier.is_waiting, "no reply")

        assert give(carrier, stock, 3)
        rank.emitter.stop(limit_s=LIMIT_S)

    assert [carrier.report()[name] for name in ("let_go", "stock_full", "kept")] == [1, 1, 1]
