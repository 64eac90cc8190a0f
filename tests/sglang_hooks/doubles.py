"""A sidecar's end of the stream, scripted: it welcomes, keeps what it is told, and replies when a test says so."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sidecar.model import PROTOCOL, Fact, Hello, Reply, SpaceFreed, Welcome
from sidecar.shell.shared_memory import new_memory
from sidecar.wire.ingress import encode, upward_reader
from sidecar.wire.memory_pipe import PipeReader

LIMIT_S = 10.0


class ScriptedSidecar:
    """Serves one stream at a time. `hear` waits for facts; every wait is limited. `handed_out`: the descriptors that
    go with its welcome. `shares_memory`: and memory, for each stream its own, from which it reads then."""

    def __init__(
        self,
        path: Path,
        *,
        first_reply: Reply | None = None,
        reads: bool = True,
        handed_out: Sequence[int] = (),
        shares_memory: bool = False,
    ) -> None:
        self._handed_out = handed_out
        self._shares_memory = shares_memory
        self._pipe: PipeReader | None = None
        self.hellos: list[Hello] = []
        self.facts: list[Fact] = []
        self._first_reply = first_reply or Welcome(PROTOCOL, "epoch")
        self._reads = threading.Event()
        if reads:
            self._reads.set()
        self._changed = threading.Condition()
        self._stream: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._reads.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._thread.join(LIMIT_S)

    def hear(self, count: int) -> list[Fact]:
        """Waits until `count` facts have come on all streams together."""
        with self._changed:
            heard = self._changed.wait_for(lambda: len(self.facts) >= count, LIMIT_S)
        assert heard, f"{len(self.facts)} of {count} facts came: {self.facts}"
        return list(self.facts)

    def meet(self, count: int = 1) -> Hello:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.hellos) >= count, LIMIT_S), "no hello came"
        return self.hellos[-1]

    def read_on(self) -> None:
        self._reads.set()

    def reply(self, reply: Reply) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._stream is not None, LIMIT_S)
            assert self._stream is not None
            self._stream.sendall(encode(reply))

    def drop(self) -> None:
        """Ends the stream, as a sidecar's death does."""
        with self._changed:
            stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError):  # the other end was first
                stream.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream:
                self._serve_stream(stream)

    def _serve_stream(self, stream: socket.socket) -> None:
        reader = upward_reader()
        self._pipe = None
        while True:
            self._reads.wait(LIMIT_S)
            try:
                received = self._read(stream)
            except OSError:
                return
            if not received:
                return
            for message in reader.feed(received):
                self._take(stream, message)

    def _read(self, stream: socket.socket) -> bytes:
        """Memory rings for nothing here: it is looked into, every millisecond."""
        if self._pipe is None:
            return stream.recv(65_536)
        readable = select.poll()
        readable.register(stream, select.POLLIN)
        while self._reads.is_set():
            said = self._pipe.read(65_536)
            if self._pipe.is_awaited:
                stream.sendall(encode(SpaceFreed()))
            if said or readable.poll(1):
                return said or stream.recv(65_536)
        self._reads.wait(LIMIT_S)
        return self._read(stream)

    def _take(self, stream: socket.socket, message: Hello | Fact) -> None:
        with self._changed:
            if isinstance(message, Hello):
                given = list(self._handed_out)
                if self._shares_memory:
                    descriptor, memory = new_memory()
                    given.append(descriptor)
                    self._pipe = PipeReader(memoryview(memory))
                socket.send_fds(stream, [encode(self._first_reply)], given)
                if self._shares_memory:
                    os.close(given[-1])
                self.hellos.append(message)
                self._stream = stream
            else:
                self.facts.append(message)
            self._changed.notify_all()


class Bell:
    """A doorbell as a sidecar hands it out."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)

    def rings(self) -> int:
        """How often it rang since this was asked last."""
        try:
            return os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return 0

    def is_rung(self) -> bool:
        """Waits for a ring."""
        listening = select.poll()
        listening.register(self.descriptor, select.POLLIN)
        return bool(listening.poll(LIMIT_S * 1000))

    def close(self) -> None:
        os.close(self.descriptor)
