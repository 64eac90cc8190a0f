"""Hooks on sglang's `CommonKVManager`: where a rank comes into being, which states a room may take."""

from collections.abc import Callable, Sequence
from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.hook_points import UNPROVEN_AFTER_ERROR
from sglang_hooks.hooks.agreement import BOOTSTRAPPING, FAILED, SUCCESS, WAITING_FOR_INPUT
from sglang_hooks.hooks.control import ControlMessages
from sglang_hooks.hooks.queue import life_in_hand
from sglang_hooks.lives import Life
from sglang_hooks.rank import Rank
from sidecar.model import DecodeEndpoint

RANK_ATTRIBUTE = "_pd_sidecar_rank"


def rank_of(manager: Any) -> Rank | None:
    """None for a manager that the plugin did not see being built, or does not serve."""
    rank: Rank | None = manager.__dict__.get(RANK_ATTRIBUTE)
    return rank


def rank_of_scheduler(scheduler: Any) -> Rank | None:
    """None in the decode role, and in front of a manager that the plugin does not serve."""
    queue = getattr(scheduler, "disagg_prefill_bootstrap_queue", None)
    return None if queue is None else rank_of(queue.kv_manager)


def take_over(manager: Any, room: int, older: Life) -> None:
    """The tables of a room for a new life, while the older one is still on its way out and needs them no more.

    What decode endpoints have gathered is the older life's, unless that one has succeeded, which took its own out.
    """
    if not older.succeeded:
        manager.transfer_infos.pop(room, None)
        manager.req_to_decode_prefix_len.pop(room, None)
    met = manager.transfer_infos.get(room, {})
    is_complete = any(len(met) == endpoint.required_dst_info_num for endpoint in list(met.values()))
    manager.request_status[room] = WAITING_FOR_INPUT if is_complete else BOOTSTRAPPING  # never absent: workers look


def around_update_status(original: Callable[..., None], manager: Any, bootstrap_room: int, status: int) -> None:
    if _may_take(manager, bootstrap_room, status):
        original(manager, bootstrap_room, status)


@contained(otherwise=True)
def _may_take(manager: Any, room: int, status: int) -> bool:
    """Keeps an ended room from coming back and an ending one from going on (stock up to 0.5.19 lets any state
    follow Failed)."""
    rank = rank_of(manager)
    if rank is None:
        return True
    life, in_hand = rank.table.find_open(room), life_in_hand()
    if in_hand is not None and in_hand is not life and (older := _older_life_in_hand(rank, room)) is not None:
        if status == SUCCESS:
            rank.succeeded(older)
        return False
    if status == FAILED:
        messages: ControlMessages = manager.__dict__["_pd_sidecar_messages"]
        return not messages.is_guarded(room)
    if status == SUCCESS:
        if life is not None:
            rank.succeeded(life, may_wait=in_hand is not None)
            return True
        return not rank.is_late(room)
    return not life.ending if life is not None else not rank.is_late(room)


def _older_life_in_hand(rank: Rank, room: int) -> Life | None:
    """What this thread reports is about a life that has lost the room to a newer one, whose tables these are."""
    life = life_in_hand()
    return life if life is not None and life.room == room and rank.is_superseded(life) else None


def around_record_failure(
    original: Callable[..., None], manager: Any, bootstrap_room: int, failure_reason: str
) -> None:
    if _may_record(manager, bootstrap_room):
        original(manager, bootstrap_room, failure_reason)


@contained(otherwise=True)
def _may_record(manager: Any, room: int) -> bool:
    """The first cause stands, and nothing is written for a room that nobody will read again."""
    rank = rank_of(manager)
    if rank is None:
        return True
    messages: ControlMessages = manager.__dict__["_pd_sidecar_messages"]
    if messages.is_guarded(room) or _older_life_in_hand(rank, room) is not None:
        return False
    life = rank.table.find_open(room)
    if life is None:
        return not rank.is_late(room)
    if life_in_hand() is life and rank.backend in UNPROVEN_AFTER_ERROR:
        rank.doubt_drain(life)
    return not (life.ending and room in manager.failure_records)


def around_worker_status(original: Callable[..., None], manager: Any, remote: str, dst_port: int, *rest: int) -> None:
    """Up to 0.5.19. `rest`: room, status, prefill rank."""
    if not is_not_for_decode(manager, DecodeEndpoint(remote, dst_port), status=rest[1]):
        original(manager, remote, dst_port, *rest)


def around_status_message(
    original: Callable[..., None], manager: Any, *, targets: Sequence[tuple[str, int]], status: int, **rest: Any
) -> None:
    """From 0.5.20. `rest`: room and cause."""
    original(manager, targets=[to for to in targets if _may_hear(manager, to, status)], status=status, **rest)


@contained(otherwise=True)
def _may_hear(manager: Any, target: tuple[str, int], status: int) -> bool:
    return not is_not_for_decode(manager, DecodeEndpoint(*target), status=status)


@contained(otherwise=False)
def is_not_for_decode(manager: Any, endpoint: DecodeEndpoint, *, status: int) -> bool:
    """A transfer worker's word about the life whose chunk it has in hand: of an older life to an endpoint of the
    room's new one, never; of a failure, not while other ranks may still be writing, since decode up to 0.5.20 frees
    its pages at the first Failed. The agreed end tells that, given a sidecar."""
    rank, life = rank_of(manager), life_in_hand()
    if rank is None or life is None:
        return False
    if rank.is_taken_over(life, endpoint):
        return True
    return status == FAILED and not life.concluded and not is_alone(manager) and rank.emitter.traffic.connected


def is_alone(manager: Any) -> bool:
    """No other rank takes part in this one's requests."""
    return bool(manager.attn_tp_size == 1 and manager.attn_cp_size == 1 and manager.pp_size == 1)
