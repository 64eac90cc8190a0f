"""The hook on the one place where stock pushes messages to decode, for PD_SIDECAR_PUSH=all."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hooks.manager import rank_of


def around_send_multipart(
    original: Callable[..., None], manager: Any, endpoint: str, parts: Sequence[bytes], is_ipv6: bool = False
) -> None:
    send = functools.partial(original, manager, endpoint, parts, is_ipv6=is_ipv6)
    if not _is_carried(manager, endpoint, parts, send):
        send()


@contained(otherwise=False)
def _is_carried(manager: Any, endpoint: str, parts: Sequence[bytes], send: Callable[[], None]) -> bool:
    """The process's first thread is the scheduler's: there nothing is left to a send that may block."""
    rank = rank_of(manager)
    if rank is None or rank.carrier is None:
        return False
    is_scheduler = threading.current_thread() is threading.main_thread()
    return rank.carrier.carry(endpoint, parts, send, may_block=not is_scheduler)
