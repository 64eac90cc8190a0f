"""The hook on stock's choke point: stock pushes whatever is not carried, with the arguments that it was given."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from sglang_hooks.contain import FAULTS
from sglang_hooks.hooks.manager import RANK_ATTRIBUTE
from sglang_hooks.hooks.push import around_send_multipart

PARTS = [b"1", b"4", b"0"]
URL = "tcp://[::1]:7001"


class Carrier:
    def __init__(self, *, takes: bool = True) -> None:
        self.asked: list[tuple[str, Sequence[bytes], bool]] = []
        self._takes = takes

    def carry(self, url: str, frames: Sequence[bytes], send: Callable[[], None], *, may_block: bool) -> bool:
        self.asked.append((url, frames, may_block))
        return self._takes


class Manager:
    """With a rank as the plugin attaches it, if a carrier is given."""

    def __init__(self, *carrier: Any) -> None:
        self.pushed: list[tuple[str, Sequence[bytes], bool]] = []
        if carrier:
            self.__dict__[RANK_ATTRIBUTE] = SimpleNamespace(carrier=carrier[0])

    def push(self, endpoint: str, parts: Sequence[bytes], is_ipv6: bool = False) -> None:
        self.pushed.append((endpoint, parts, is_ipv6))


def push(manager: Manager) -> None:
    around_send_multipart(Manager.push, manager, URL, PARTS, is_ipv6=True)


def test_without_a_rank_or_a_carrier_stock_pushes() -> None:
    for manager in (Manager(), Manager(None)):
        push(manager)

        assert manager.pushed == [(URL, PARTS, True)]


def test_what_is_carried_stock_does_not_push() -> None:
    manager = Manager(carrier := Carrier())
    push(manager)

    assert manager.pushed == []
    assert carrier.asked == [(URL, PARTS, False)]


def test_other_threads_than_the_schedulers_may_block_as_they_do_in_stock() -> None:
    manager = Manager(carrier := Carrier(takes=False))
    thread = threading.Thread(target=push, args=(manager,))
    thread.start()
    thread.join(10.0)

    assert manager.pushed == [(URL, PARTS, True)]
    assert carrier.asked == [(URL, PARTS, True)]


def test_a_fault_of_ours_leaves_it_to_stock() -> None:
    FAULTS.clear()
    manager = Manager(object())
    push(manager)

    assert manager.pushed == [(URL, PARTS, True)]
    assert sum(FAULTS.values()) == 1
    FAULTS.clear()
