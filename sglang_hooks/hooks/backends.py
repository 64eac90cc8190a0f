"""What a transfer backend does its own way, and not through the classes that all backends share."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hooks.agreement import FAILED, SUCCESS
from sglang_hooks.hooks.manager import around_update_status, is_not_for_decode, rank_of
from sglang_hooks.hooks.queue import life_in_hand, note_writes
from sidecar.model import DecodeEndpoint

SUBMITS = ("_submit_kv_transfer", "add_transfer_request")
"""Mori's, from 0.5.19 and before: what hands a chunk's writes to the vendor's engine and answers with their states,
alone or before something else."""


def take_hold_of_own_methods(manager: Any, backend: str) -> None:
    """On the manager itself: the modules of other backends need not be there, so no class is named."""
    own = vars(type(manager))
    # NIXL and Mori up to 0.5.19 keep Failed sticky before the common method is reached, where a Success that comes
    # after a Failed would not be heard of, though decode has been told.
    if "update_status" in own:
        _replace(manager, "update_status", around_update_status)
    if backend == "mori":
        _replace(manager, next(name for name in SUBMITS if name in own), _around_submit)
        if "notify_decode_status" in own:
            _replace(manager, "notify_decode_status", _around_notify)


def _replace(manager: Any, name: str, around: Callable[..., Any]) -> None:
    setattr(manager, name, functools.partial(around, getattr(type(manager), name), manager))


def _around_submit(own: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Mori's worker does not wait for the writes of a room that was aborted meanwhile."""
    submitted = own(manager, *args, **kwargs)
    _note_writes(submitted)
    return submitted


@contained(otherwise=None)
def _note_writes(submitted: Any) -> None:
    note_writes(submitted[0] if isinstance(submitted, tuple) else submitted)


def _around_notify(
    own: Callable[..., None], manager: Any, infos: Sequence[Any], bootstrap_room: int, status: int, *reason: Any
) -> None:
    """Mori up to 0.5.19. Pushes a Success before it is anywhere else, and a failure with writes under way."""
    _note_success(manager, status)
    own(manager, [info for info in infos if _may_hear(manager, info, status)], bootstrap_room, status, *reason)


@contained(otherwise=None)
def _note_success(manager: Any, status: int) -> None:
    rank, life = rank_of(manager), life_in_hand()
    if status == SUCCESS and rank is not None and life is not None:
        rank.succeeded(life)


@contained(otherwise=True)
def _may_hear(manager: Any, info: Any, status: int) -> bool:
    endpoint = DecodeEndpoint(info.endpoint, info.dst_port)
    return not (_is_ours_to_tell(manager, status) or is_not_for_decode(manager, endpoint, status=status))


def _is_ours_to_tell(manager: Any, status: int) -> bool:
    """A failure, once, when nothing is being written any more: given a sidecar."""
    rank = rank_of(manager)
    return status == FAILED and rank is not None and rank.emitter.traffic.connected


@contained(otherwise=None)
def keep_failed(sender: Any) -> None:
    """`NixlKVSender` up to 0.5.22 asks the table of rooms alone, where a new request may have taken the room."""
    if "_send_failed" in vars(sender):
        sender._send_failed = True  # noqa: SLF001 - sglang's own marker
