"""Hooks on sglang's `CommonKVSender`: a life begins with it, and every end without Success passes through it."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from sglang_hooks import causes
from sglang_hooks.contain import contained
from sglang_hooks.hooks.agreement import FAILED, SUCCESS
from sglang_hooks.hooks.backends import keep_failed
from sglang_hooks.hooks.manager import rank_of, take_over
from sglang_hooks.hooks.tables import purge_tables
from sglang_hooks.lives import Life
from sglang_hooks.rank import Rank

LIFE_ATTRIBUTE = "_pd_sidecar_life"


def life_of(sender: Any) -> Life | None:
    """None for a sender without one: a fake, or one that the plugin did not see being built."""
    life: Life | None = getattr(sender, "__dict__", {}).get(LIFE_ATTRIBUTE)
    return life


def nothing_was_sent(sender: Any, life: Life) -> bool:
    """No chunk was handed over yet: the same on every rank that runs the same batches."""
    return sender.curr_idx == 0 and life.put == 0


def around_init(
    original: Callable[..., None],
    sender: Any,
    mgr: Any,
    bootstrap_addr: str,
    bootstrap_room: int,
    *args: Any,
    **kwargs: Any,
) -> None:
    _open(sender, mgr, bootstrap_room)
    original(sender, mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)


@contained(otherwise=None)
def _open(sender: Any, manager: Any, room: int) -> None:
    rank = rank_of(manager)
    if rank is None or not isinstance(room, int):
        return  # a stub for a session that does not exist has no room
    rank.purge_if_ended(room, lambda: purge_tables(manager, room))
    older = rank.table.find_open(room)
    if older is not None and older.ending:
        take_over(manager, room, older)
    setattr(sender, LIFE_ATTRIBUTE, rank.open(room, rank.traceparent_of(room)))
    if rank.backend == "mori" and "abort" in vars(type(sender)):
        sender.abort = functools.partial(around_abort, _abort_silently, sender)


@contained(otherwise=None)
def _abort_silently(sender: Any) -> None:
    """Mori up to 0.5.18 tells decode from `abort`, with writes under way. What stands here is the common `abort`, and
    stock's mark that decode was told."""
    sender.kv_mgr.record_failure(sender.bootstrap_room, causes.ABORTED)
    sender.kv_mgr.update_status(sender.bootstrap_room, FAILED)
    sender.conclude_state = FAILED
    sender.status_notified, sender._notified_status = True, FAILED  # noqa: SLF001 - sglang's own marks


def around_abort(original: Callable[..., None], sender: Any) -> None:
    if _begin_abort(sender):
        original(sender)
        keep_failed(sender)
        _conclude_unsent(sender)


@contained(otherwise=True)
def _begin_abort(sender: Any) -> bool:
    """Whether stock should act: not on a second abort, and not over this rank's own Success, which decode has been
    told."""
    life = life_of(sender)
    rank = rank_of(sender.kv_mgr)
    if life is None or rank is None:
        return True
    if not rank.begin_end(life, causes.ABORTED, causes.CLIENT_CLOSED_REQUEST):
        return False
    return bool(sender.kv_mgr.request_status.get(life.room) != SUCCESS)


@contained(otherwise=None)
def _conclude_unsent(sender: Any) -> None:
    """Nothing was sent and, the status being Failed, nothing will be: decode is told now, not at the engine's next
    poll.

    Every rank, and every stage of a pipeline, meets the abort in the same turn of its loop, with the same sent before.
    A stage that is behind has sent less than this one.
    """
    life = life_of(sender)
    rank = rank_of(sender.kv_mgr)
    if life is not None and rank is not None and nothing_was_sent(sender, life):
        rank.release(life, life.cause)


def around_clear(original: Callable[..., None], sender: Any) -> None:
    if not _is_superseded(sender):
        original(sender)
    _release(sender)


@contained(otherwise=False)
def _is_superseded(sender: Any) -> bool:
    """Stock's tables are keyed by the room alone: an old sender must not clear what belongs to the room's new life."""
    life = life_of(sender)
    rank = rank_of(sender.kv_mgr)
    return life is not None and rank is not None and rank.is_superseded(life)


@contained(otherwise=None)
def _release(sender: Any) -> None:
    manager = sender.kv_mgr
    life = life_of(sender)
    rank = rank_of(manager)
    if life is None or rank is None:
        return
    rank.release(life, manager.failure_records.get(life.room, ""), causes.SERVER_ERROR)
    if life.succeeded and not rank.is_superseded(life):
        with manager.failure_lock:  # an abort that came too late has left its cause, and nobody will ask for it
            manager.failure_records.pop(life.room, None)


def end_and_purge(sender: Any, cause: str, http_status: int) -> None:
    """For a request that stock drops without a word to its sender (a waiting one): the end is told, the tables are
    emptied."""
    life = life_of(sender)
    rank = rank_of(sender.kv_mgr) if life is not None else None
    if life is None or rank is None:
        return
    rank.release(life, cause, http_status)
    drop_remains(rank, sender.kv_mgr, life)


def end_dropped(waiting: Iterable[Any], scheduler: Any, cause: str, http_status: int) -> None:
    """Those that have left the waiting queue without a word to their senders."""
    kept = {id(req) for req in scheduler.waiting_queue}
    for req in waiting:
        if id(req) not in kept:
            end_and_purge(req.disagg_kv_sender, cause, http_status)


def drop_remains(rank: Rank, manager: Any, life: Life) -> None:
    rank.purge_if_ended(life.room, lambda: purge_tables(manager, life.room))
