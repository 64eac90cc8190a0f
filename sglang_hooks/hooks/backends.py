"""What a transfer backend does its own way, and not through the classes that all backends share."""

import functools
from collections.abc import Callable
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hooks.manager import around_update_status


def take_hold_of_own_methods(manager: Any) -> None:
    """NIXL and Mori up to 0.5.19 keep Failed sticky in an `update_status` of their own: a Success that comes after a
    Failed would never reach the hook on the common one, though decode has been told of it."""
    own = vars(type(manager)).get("update_status")
    if own is not None:
        manager.update_status = functools.partial(_around_own, own, manager)


def _around_own(own: Callable[..., None], manager: Any, bootstrap_room: int, status: int) -> None:
    around_update_status(own, manager, bootstrap_room, status)


@contained(otherwise=None)
def keep_failed(sender: Any) -> None:
    """`NixlKVSender` up to 0.5.22 asks the table of rooms alone, where a new request may have taken the room."""
    if "_send_failed" in vars(sender):
        sender._send_failed = True  # noqa: SLF001 - sglang's own marker
