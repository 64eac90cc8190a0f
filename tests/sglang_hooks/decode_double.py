"""A decode manager as small as the decode half sees it: tables, methods, a socket that is a list."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sglang_hooks.decode.control import DecodeControl
from sglang_hooks.decode.half import DecodeHalf, PrefillLine
from sglang_hooks.hooks.gate import Frames
from sglang_hooks.messages.values import Family

FAILED, BOOTSTRAPPING, WAITING, SUCCESS = 0, 1, 2, 4
ROOM = 4711
REGISTRATION = [b"None", b"127.0.0.1", b"7001", b"127.0.0.1:9", b"", b"", b"", b"0", b"1", b"64"]
METADATA = [b"%d" % ROOM, b"127.0.0.1", b"7001", b"127.0.0.1:9", b"", b"0", b"", b"1"]


class NoMoreError(Exception):
    """The double's socket has nothing more to give."""


class OldManager:
    """0.5.18, 0.5.19."""

    def __init__(self) -> None:
        self.arriving: list[Frames] = []
        self.server_socket = SimpleNamespace(recv_multipart=self._receive, closed=True)
        self.server_args = SimpleNamespace()
        self.request_status: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}
        self.required_prefill_response_num_table: dict[int, int] = {}
        self.prefill_response_tracker: dict[int, set[int]] = defaultdict(set)
        self.kv_args = SimpleNamespace(aux_data_ptrs=[1, 2], aux_item_lens=[16, 8], aux_data_lens=[160, 80])
        self.enable_staging = False

    def _receive(self) -> Frames:
        if not self.arriving:
            raise NoMoreError
        return self.arriving.pop(0)

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None:
        self.failure_records[bootstrap_room] = failure_reason

    def update_status(self, bootstrap_room: int, status: int) -> None:
        self.request_status[bootstrap_room] = status


class NewManager(OldManager):
    """From 0.5.20 on."""

    def parse_kv_status_message(self, _frames: Frames) -> None: ...


@dataclass
class PrefillSocket:
    """What decode says to one prefill rank."""

    sent: list[tuple[list[bytes], int]] = field(default_factory=list)
    closed: bool = False
    lock: Any = field(default_factory=threading.Lock)
    is_full: bool = False

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        assert self.lock.locked()
        if self.is_full:
            raise BlockingIOError
        self.sent.append((list(frames), flags))


class Bench:
    """A manager with its control, and the prefill ranks that it has shaken hands with."""

    def __init__(
        self, family: Family = Family.MOONCAKE, *, old: bool = True, has_half: bool = True, ranks: int = 1
    ) -> None:
        self.manager = OldManager() if old else NewManager()
        self.half = DecodeHalf("0.5.18") if has_half else None
        self.control = DecodeControl(self.manager, family, self.half)
        self.control.install()
        self.prefill = [PrefillSocket() for _ in range(ranks)]

    def open(self, room: int = ROOM) -> None:
        """As `CommonKVReceiver` does: the status, the registrations, the metadata."""
        self.manager.update_status(room, BOOTSTRAPPING)
        for frames in (REGISTRATION, [b"%d" % room, *METADATA[1:]]):
            for socket in self.prefill:
                line = PrefillLine(socket, socket.lock, self.half) if self.half else socket
                with socket.lock:
                    line.send_multipart(frames)

    def hear(self, *messages: Frames) -> list[Frames | None]:
        """What stock gets, up to the end of what has arrived."""
        self.manager.arriving = [list(message) for message in messages]
        got: list[Frames | None] = []
        while True:
            try:
                got.append(self.manager.server_socket.recv_multipart())
            except NoMoreError:
                return got

    def acks(self, rank: int = 0) -> list[bytes]:
        return [frames[-1] for frames, _ in self.prefill[rank].sent if b"acknowledged" in frames[-1]]
