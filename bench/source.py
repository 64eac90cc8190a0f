"""A rank as fast as it gets: facts made beforehand, written in pieces as large as the kernel takes.

So it is the sidecar that is measured, and not the Python of a rank.
"""

import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.running import LIMIT_S, wait_until
from sidecar.model import (
    PROTOCOL,
    Accepted,
    DecodeEndpoint,
    DecodeHandshake,
    Hello,
    RoomConcluded,
    RoomOpened,
    SettledBatch,
    TerminalStatus,
)
from sidecar.wire.ingress import encode, encode_all, reply_reader


class Source:
    """`settled` counts what the sidecar has reported so."""

    def __init__(self, path: Path) -> None:
        self.settled = 0
        self._accepted = 0
        self._seq = 0
        self._room = 0
        self._stream = socket.socket(socket.AF_UNIX)
        self._stream.settimeout(LIMIT_S)
        self._stream.connect(str(path))
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._stream.sendall(
            encode(
                Hello(
                    *(PROTOCOL, f"source-{time.monotonic_ns()}", "bench", "prefill", 0, 0, 0, 0, os.getpid()),
                    *("-", "mooncake", 300.0, {}),
                    hears_hand_offs=True,
                    hears_batches=True,
                )
            )
        )
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.shutdown(socket.SHUT_RDWR)
        self._reader.join(LIMIT_S)
        self._stream.close()

    def open(self, endpoints: list[DecodeEndpoint], count: int) -> range:
        """So many rooms, dealt out to the endpoints; back when the sidecar has them, which it says a second later."""
        rooms, frames = self.openings(endpoints, count)
        self._stream.sendall(frames)
        wait_until(lambda: self._accepted >= self._seq, "the handshakes are not taken")
        return rooms

    def openings(self, endpoints: list[DecodeEndpoint], count: int) -> tuple[range, bytes]:
        """Such rooms, and what is to be written for them."""
        rooms = range(self._room, self._room + count)
        self._room += count
        facts: list[RoomOpened | DecodeHandshake] = []
        for number, room in enumerate(rooms):
            facts.append(RoomOpened(self._next(), room, room + 1))
            facts.append(DecodeHandshake(self._next(), room, room + 1, endpoints[number % len(endpoints)], "s"))
        return rooms, encode_all(facts)

    def endings(self, rooms: range) -> bytes:
        """That all have failed, to be written when it is time."""
        now = time.monotonic()
        failed = TerminalStatus.FAILED
        return encode_all(
            [RoomConcluded(self._next(), room, room + 1, failed, "Aborted", drained=True, at_s=now) for room in rooms]
        )

    def write(self, frames: bytes) -> None:
        self._stream.sendall(frames)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _read(self) -> None:
        reader = reply_reader()
        while received := self._stream.recv(1 << 20):
            for reply in reader.cut(received)[0]:
                if isinstance(reply, Accepted):
                    self._accepted = reply.seq
                elif isinstance(reply, SettledBatch):
                    self.settled += len(reply.handshakes)
