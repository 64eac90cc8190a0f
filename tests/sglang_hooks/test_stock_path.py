"""Lines for what the sidecar did not take: one endpoint's is stuck, and nobody else's."""

import threading
import time
from collections.abc import Callable

import pytest

from sglang_hooks import stock_path as stock_path_module
from sglang_hooks.stock_path import AGE_LIMIT_S, StockPath
from sidecar.model import DecodeEndpoint

LIMIT_S = 10.0
D1, D2 = DecodeEndpoint("127.0.0.1", 7001), DecodeEndpoint("127.0.0.1", 7002)


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def test_a_line_keeps_its_order_and_delays_no_other() -> None:
    before: list[int] = []
    path = StockPath(before_each=lambda: before.append(1))
    pushed: list[str] = []
    stuck, other = threading.Event(), threading.Event()

    def stick() -> None:
        stuck.wait(LIMIT_S)
        pushed.append("a")

    path.send(D1, stick)
    path.send(D1, lambda: pushed.append("b"))

    path.send(D2, other.set)

    assert other.wait(LIMIT_S)
    assert pushed == []
    assert path.is_busy(D1)

    stuck.set()
    wait_until(lambda: not path.is_busy(D1), "the line did not end")

    assert pushed == ["a", "b"]
    assert len(before) == 3


def test_what_has_no_place_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_path_module, "LINE_LIMIT", 1)
    monkeypatch.setattr(stock_path_module, "THREAD_LIMIT", 1)
    path = StockPath(before_each=lambda: None)
    begun, free = threading.Event(), threading.Event()

    def stick() -> None:
        begun.set()
        free.wait(LIMIT_S)

    path.send(D1, stick)
    assert begun.wait(LIMIT_S)

    assert path.send(D1, lambda: None)
    assert not path.send(D1, lambda: None)
    assert not path.send(D2, lambda: None)
    assert path.counts.lost == 2

    free.set()
    wait_until(lambda: path.counts.sent == 2, "the line did not end")


def test_what_stock_raises_ends_no_line() -> None:
    path = StockPath(before_each=lambda: None)
    pushed: list[int] = []

    def fail() -> None:
        raise RuntimeError

    path.send(D1, fail)
    path.send(D1, lambda: pushed.append(1))

    wait_until(lambda: pushed == [1], "the line did not go on")
    assert path.counts.failed == 1


def test_what_has_waited_too_long_behind_a_stuck_one_is_not_sent() -> None:
    """The room may be another request's by then."""
    now = [0.0]
    path = StockPath(before_each=lambda: None, clock=lambda: now[0])
    begun, free = threading.Event(), threading.Event()
    pushed: list[int] = []

    def stick() -> None:
        begun.set()
        free.wait(LIMIT_S)

    path.send(D1, stick)
    assert begun.wait(LIMIT_S)
    path.send(D1, lambda: pushed.append(1))
    now[0] += AGE_LIMIT_S + 1
    path.send(D1, lambda: pushed.append(2))
    free.set()

    wait_until(lambda: pushed == [2], "the line did not go on")
    assert path.counts.lost == 1
