"""What is around a backend's own methods cannot raise into the thread that calls them."""

from types import SimpleNamespace
from typing import Any

from sglang_hooks.contain import FAULTS
from sglang_hooks.hooks.backends import take_hold_of_own_methods
from sglang_hooks.hooks.manager import around_status_message


def test_a_target_that_is_no_endpoint_is_left_to_stock() -> None:
    heard: list[Any] = []

    def stock(_manager: Any, *, targets: Any, **_rest: Any) -> None:
        heard.append(targets)

    around_status_message(stock, SimpleNamespace(), targets=[("host", 1, "more")], status=0, bootstrap_room=7)  # type: ignore[list-item]

    assert heard == [[("host", 1, "more")]]


def test_what_a_submission_answers_is_passed_on_whatever_it_is() -> None:
    class Mori:
        def _submit_kv_transfer(self, room: int) -> int:
            return room

    manager = Mori()
    take_hold_of_own_methods(manager, "mori")
    before = FAULTS.total()

    assert manager._submit_kv_transfer(7) == 7  # noqa: SLF001 - sglang's name
    assert FAULTS.total() == before + 1
