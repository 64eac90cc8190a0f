"""Hooks on sglang's `FastQueue`, the one way from the scheduler to the transfer workers: they count what is being
written, and know which life a worker is at work for."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sglang_hooks.contain import contained
from sglang_hooks.lives import Life
from sglang_hooks.rank import Rank

LIFE_ATTRIBUTE = "_pd_sidecar_life"

WRITES_LIMIT_S = 30.0
LOOK_EVERY_S = 0.001

_worker = threading.local()


class WriteState(Protocol):
    """One write of the vendor's engine (mori `TransferStatus`)."""

    def InProgress(self) -> bool: ...


def life_in_hand() -> Life | None:
    """The life whose chunk the calling thread is writing; None outside a transfer worker."""
    return getattr(getattr(_worker, "chunk", None), LIFE_ATTRIBUTE, None)


def note_writes(states: Iterable[WriteState]) -> None:
    """Of the chunk in hand: a worker that comes back for the next one before these have ended waits for them."""
    _worker.writes = tuple(states)


class ChunkCount:
    """Counts a chunk when it is put, and as finished when the worker that took it comes back for the next.

    A worker is serial, so coming back proves that the chunk before was written, failed or skipped, and its status
    pushed. A worker that died leaves the count open for good: the drain timeout decides then.
    """

    def __init__(self, rank: Callable[[], Rank | None]) -> None:
        self._rank = rank

    def around_put(self, original: Callable[..., None], queue: Any, item: Any) -> None:
        if self._count(item):
            original(queue, item)

    def around_get(self, original: Callable[..., Any], queue: Any) -> Any:
        while True:
            self._finish_last()
            item = original(queue)
            _worker.chunk = item
            if not self._is_of_an_old_life():
                return item

    @contained(otherwise=True)
    def _count(self, item: Any) -> bool:
        """Whether the chunk may be written: not if the room was ended behind the scheduler's back."""
        rank = self._rank()
        room = _room_of(item)
        if rank is None or room is None:
            return True
        life = rank.chunk_put(room)
        if life is None:
            return not (rank.counts.deaths_of_siblings and rank.is_late(room))
        setattr(item, LIFE_ATTRIBUTE, life)
        return True

    @contained(otherwise=False)
    def _is_of_an_old_life(self) -> bool:
        """The room was given to a new request while the chunk was queued. Stock, which looks at the room, would take
        the chunk for one of that request."""
        rank, life = self._rank(), life_in_hand()
        return rank is not None and life is not None and rank.is_superseded(life)

    @contained(otherwise=None)
    def _finish_last(self) -> None:
        chunk = getattr(_worker, "chunk", None)
        _worker.chunk = None
        life: Life | None = getattr(chunk, LIFE_ATTRIBUTE, None)
        rank = self._rank()
        if life is not None and rank is not None:
            if not _writes_have_ended():
                rank.doubt_drain(life)
            delattr(chunk, LIFE_ATTRIBUTE)
            rank.chunk_finished(life)


def _room_of(item: Any) -> int | None:
    """None for sglang's sentinel for teardown."""
    room: int | None = getattr(item, "room", None)
    if room is None and hasattr(item, "sender"):  # Mori up to 0.5.18
        room = item.sender.bootstrap_room
    return room


def _writes_have_ended() -> bool:
    """Waits for the last chunk's, in a transfer worker; that is what a worker does anyway, unless the room was aborted.
    Answers False if they take too long."""
    writes: tuple[WriteState, ...] = getattr(_worker, "writes", ())
    _worker.writes = ()
    deadline = time.monotonic() + WRITES_LIMIT_S
    while any(write.InProgress() for write in writes):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
