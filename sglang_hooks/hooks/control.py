"""What the socket of a prefill rank hears, looked at before stock does."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, assert_never

from sglang_hooks.contain import contained
from sglang_hooks.dropped import Dropped
from sglang_hooks.hooks.gate import Frames, Gate, family_of
from sglang_hooks.hooks.tables import EngineTables, purge_tables
from sglang_hooks.messages.prefill import PrefillStock, read_for_prefill
from sglang_hooks.messages.values import Abort, Family, Junk, Metadata, Other, Reason, Registration, Watermark
from sglang_hooks.rank import Rank
from sglang_hooks.wake import Wake

JUDGE_EVERY_MS = 1000
"""How often a held handshake is looked at for being overdue."""


def prefill_stock(manager: Any) -> PrefillStock:
    """By what is there: late allocation and the lenient reader of ABORT came with 0.5.22."""
    family = family_of(manager)
    if family is None:
        raise TypeError(f"{type(manager).__name__} is of no backend that the plugin knows")
    return PrefillStock(
        family,
        reads_bootstrap=getattr(manager, "deferred_bootstrap", None) is not None,
        reads_short_abort=hasattr(manager, "handle_abort_ack_message"),
    )


class ControlMessages:
    """What one rank's bootstrap thread receives. Junk never reaches stock."""

    def __init__(self, manager: Any, rank: Rank, stock: PrefillStock | None = None) -> None:
        self._manager = manager
        self._rank = rank
        self._stock = stock or prefill_stock(manager)
        self._looks_sessions_up = self._stock.family is not Family.MORI
        self._guarded: tuple[int, int] | None = None  # the thread that handles a message, and a room it must not fail
        self._joined_room: int | None = None  # of the message that stock has in hand
        self._dropped = Dropped(rank.counts.junk, where="prefill's control socket")
        self._released = Wake()
        rank.senderless.tables = EngineTables(manager)
        rank.senderless.on_released = self._released.ring

    @functools.cached_property
    def gate(self) -> Gate:
        return Gate(
            self._manager,
            take=self._take,
            handled=self._after_last,
            dropped=self._dropped,
            released=self._await_released,
        )

    def wrap(self, receive: Callable[..., Frames]) -> Callable[..., Frames | None]:
        """A `recv_multipart` that keeps to itself what must not reach stock."""
        return self.gate.wrap(receive)

    def is_guarded(self, room: int) -> bool:
        """Whether the message that this thread is handling must not fail `room`."""
        guarded = self._guarded
        return guarded is not None and guarded == (threading.get_ident(), room)

    @contained(otherwise=None)
    def _after_last(self) -> None:
        """Stock has handled the last message. A life may have ended between our look at it and stock's: nothing may
        stay of it."""
        self._guarded = None
        self._rank.senderless.put_down()
        room, self._joined_room = self._joined_room, None
        if room is not None and self._rank.purge_if_ended(room, lambda: purge_tables(self._manager, room)):
            self._rank.counts.revivals_purged += 1

    @contained(otherwise=None)
    def _await_released(self) -> Frames | None:
        """Costs nothing while no handshake is held. Else waits for its judgement as well as for the next message; None:
        that one is here, or nothing is held any more."""
        senderless = self._rank.senderless
        while True:
            frames = senderless.take_released()
            if frames is not None:
                message = read_for_prefill(list(frames), self._stock)
                if isinstance(message, Metadata):
                    self._joined_room = message.room
                return list(frames)
            if not senderless.doubts or self._is_message_here():
                return None
            senderless.judge_overdue()

    def _is_message_here(self) -> bool:
        """Waits until there is one, until something is released, or for JUDGE_EVERY_MS."""
        import zmq  # noqa: PLC0415 - the engine's own; the plugin does not need it elsewhere

        socket = self._manager.server_socket
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._released.descriptor, zmq.POLLIN)
        ready = dict(poller.poll(JUDGE_EVERY_MS))
        if self._released.descriptor in ready:
            self._released.silence()
        return socket in ready

    def _take(self, frames: Frames) -> Frames | None:
        return None if self._keep_back(frames) else frames

    @contained(otherwise=False)
    def _keep_back(self, frames: Frames) -> bool:
        message = read_for_prefill(frames, self._stock)
        match message:
            case Metadata():  # mostly
                return self._keep_back_metadata(message, frames)
            case Junk(reason):
                return self._drop(reason, frames)
            case Registration():
                return self._keep_back_registration(message, frames)
            case Abort(room, endpoint):
                if endpoint is not None and self._rank.decode_aborted(room, endpoint):
                    self._guarded = threading.get_ident(), room
                return False
            case Watermark():
                return is_without_staging(self._manager) and self._drop(Reason.MISMATCHED, frames)
            case Other():
                return False
            case _:
                assert_never(message)

    def _drop(self, reason: Reason, frames: Frames) -> bool:
        self._dropped.note(reason, frames)
        return True

    def _keep_back_registration(self, message: Registration, frames: Frames) -> bool:
        """An acknowledgement is ours alone: as a registration, stock has seen it before."""
        if message.acknowledged is not None:
            self._rank.decode_acknowledged(message.acknowledged, message.endpoint)
            return True
        session = message.session if self._stock.family is not Family.MORI else _mori_session(self._manager, frames)
        if session:
            self._rank.registered(message.endpoint, session, message.frames, message.decode_half)
        return False

    def _keep_back_metadata(self, message: Metadata, frames: Frames) -> bool:
        if message.is_dummy:
            is_kept = self._rank.meet_dummy(message.room, frames)
        elif self._looks_sessions_up and has_never_registered(self._manager, message.session):
            return self._drop(Reason.MISMATCHED, frames)
        else:
            is_kept = self._rank.meet(message.room, message.endpoint, message.session, frames)
        if not is_kept:
            self._joined_room = message.room
        return is_kept


def has_never_registered(manager: Any, session: str) -> bool:
    """Mooncake's and NIXL's transfer workers look it up without asking, and one of Mooncake's ends over it."""
    known = getattr(manager, "decode_kv_args_table", None)
    return known is not None and session not in known


def is_without_staging(manager: Any) -> bool:
    return getattr(manager, "_staging_ctx", None) is None


def _mori_session(manager: Any, frames: Frames) -> str:
    """ "" for a description that the vendor's library does not read; stock drops such a registration itself."""
    try:
        described = sys.modules[type(manager).__module__].EngineDesc.unpack(frames[4])
        return str(described.key)
    except Exception:
        return ""
