"""What the socket of a decode rank hears, looked at before stock does."""

import enum
import functools
import threading
from collections.abc import Callable
from typing import Any, assert_never

from sglang_hooks import causes
from sglang_hooks.contain import contained
from sglang_hooks.decode.half import DecodeHalf
from sglang_hooks.dropped import Dropped, no_junk
from sglang_hooks.hooks.agreement import BOOTSTRAPPING, FAILED, SUCCESS
from sglang_hooks.hooks.gate import Frames, Gate
from sglang_hooks.messages.decode import DecodeStock, read_for_decode
from sglang_hooks.messages.values import AuxData, Family, Junk, Other, Reason, Staging, Status


def has_status_reader(manager: Any) -> bool:
    """From 0.5.20 on: statuses with a reason are read, and those of a room that is no more are dropped."""
    return hasattr(manager, "parse_kv_status_message")


def has_thread(manager: Any, family: Family) -> bool:
    """Whether a thread of sglang's serves the socket. NIXL's decode up to 0.5.19 has one only with staging buffers or,
    in 0.5.19, with deferred release, and it reads no status."""
    if family is not Family.NIXL or has_status_reader(manager):
        return True
    defers = getattr(manager, "enable_deferred_decode_kv_release", False)
    return bool(manager.enable_staging or (defers and hasattr(manager, "_start_decode_listener_thread")))


class _Untouched(enum.Enum):
    UNTOUCHED = enum.auto()


UNTOUCHED = _Untouched.UNTOUCHED


class DecodeControl:
    """`half` is None where it is switched off: then this is only a guard."""

    def __init__(self, manager: Any, family: Family, half: DecodeHalf | None) -> None:
        self.junk = no_junk()
        self._manager = manager
        self._family = family
        self._is_old = not has_status_reader(manager)
        self._takes_three = self._is_old and family is Family.MOONCAKE
        self._stock = DecodeStock(family, stands_unknown=not self._takes_three)
        self._half = half
        self._dropped = Dropped(self.junk, where="decode's control socket")
        self._thread = threading.local()
        self._reader: threading.Thread | None = None

    @functools.cached_property
    def gate(self) -> Gate:
        return Gate(self._manager, take=self._take, handled=self._after_last, dropped=self._dropped)

    def install(self) -> None:
        """Before the manager's threads exist. Methods are shadowed at this one manager, not in sglang's classes."""
        self.gate.install()
        if self._half is not None:
            vars(self._manager)["record_failure"] = self._with_cause(self._manager.record_failure)
            vars(self._manager)["update_status"] = self._with_opening(self._manager.update_status)

    # -- what sglang does at this manager

    def _with_cause(self, original: Callable[[int, str], None]) -> Callable[[int, str], None]:
        def record_failure(bootstrap_room: int, failure_reason: str) -> None:
            original(bootstrap_room, self._cause_in_hand(bootstrap_room) or failure_reason)

        return record_failure

    @contained(otherwise="")
    def _cause_in_hand(self, room: int) -> str:
        """Only for the message that this thread is handling: a timeout has a cause of its own."""
        is_in_hand = getattr(self._thread, "failed_room", None) == room
        return self._half.cause(room) if is_in_hand and self._half is not None else ""

    def _with_opening(self, original: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def update_status(bootstrap_room: int, status: int) -> None:
            if status == BOOTSTRAPPING:
                self._opened(bootstrap_room)
            original(bootstrap_room, status)

        return update_status

    @contained(otherwise=None)
    def _opened(self, room: int) -> None:
        """A receiver is being made for the room; the manager is complete by then."""
        if self._half is None:
            return
        self._half.opened(room)
        if self._reader is None and not has_thread(self._manager, self._family) and not self.gate.is_used:
            self._reader = threading.Thread(target=self._read, name="pd-sidecar-decode", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        """In place of the thread that this sglang does not have. What is not ours, nobody would have read."""
        try:
            while True:
                self._manager.server_socket.recv_multipart()
        except Exception as ended:
            if not getattr(self._manager.server_socket, "closed", True):
                raise ended from None

    # -- messages

    def _take(self, frames: Frames) -> Frames | None:
        taken = self._for_stock(frames)
        return frames if taken is UNTOUCHED else taken

    @contained(otherwise=UNTOUCHED)
    def _for_stock(self, frames: Frames) -> Frames | _Untouched | None:
        message = read_for_decode(frames, self._stock)
        match message:
            case Junk(reason):
                self._dropped.note(reason, frames)
                return None
            case AuxData():
                return self._if(self._fits(message), frames)
            case Staging():
                return self._if(getattr(self._manager, "_staging_handler", None) is not None, frames)
            case Status():
                return self._status(message, frames)
            case Other():
                return UNTOUCHED
            case _:
                assert_never(message)

    def _if(self, matches: bool, frames: Frames) -> _Untouched | None:
        if matches:
            return UNTOUCHED
        self._dropped.note(Reason.MISMATCHED, frames)
        return None

    def _fits(self, message: AuxData) -> bool:
        """Stock writes to the address that comes out, whatever it is."""
        slots = self._manager.kv_args
        if not 0 <= message.buffer_index < len(slots.aux_data_ptrs) or message.aux_index < 0:
            return False
        start = slots.aux_item_lens[message.buffer_index] * message.aux_index
        return bool(start + message.size <= slots.aux_data_lens[message.buffer_index])

    def _status(self, message: Status, frames: Frames) -> Frames | _Untouched | None:
        if self._takes_three and message.status == SUCCESS and self._is_uncounted(message.room):
            return self._if(False, frames)
        if self._half is not None and message.status == FAILED:
            self._failed(self._half, message)
            if self._is_old and message.room not in self._manager.request_status:
                self._half.counts.late += 1  # it would leave its cause behind, for the room's next request
                return None
        if self._is_old and self._family is Family.NIXL:
            self._apply(message)
            return None
        return frames[:3] if self._takes_three else UNTOUCHED

    def _is_uncounted(self, room: int) -> bool:
        """Stock up to 0.5.19 looks up how many ranks the room waits for, before it can know."""
        is_known = room in self._manager.request_status
        return is_known and room not in self._manager.required_prefill_response_num_table

    def _failed(self, half: DecodeHalf, message: Status) -> None:
        if half.reported(message.room, message.prefill_rank, is_ours=message.is_ours):
            self._thread.to_acknowledge = message.room
        if message.is_ours or message.reason:
            half.keep(message.room, message.reason or causes.GENERIC, message.http_status)
            self._thread.failed_room = message.room

    def _apply(self, message: Status) -> None:
        """As `CommonKVManager.apply_prefill_status` from 0.5.20 on. A Success, NIXL says over its own channel."""
        if self._half is None or message.status != FAILED or message.room not in self._manager.request_status:
            return
        self._manager.record_failure(message.room, message.reason or causes.GENERIC)
        self._manager.update_status(message.room, FAILED)

    @contained(otherwise=None)
    def _after_last(self) -> None:
        """Stock has handled the last message: now decode knows."""
        room = getattr(self._thread, "to_acknowledge", None)
        self._thread.to_acknowledge = self._thread.failed_room = None
        if room is not None and self._half is not None:
            self._half.acknowledge(room)
