"""A stream that is read when its rank rings, not whenever something comes.

Most facts are about normal requests, and nothing is to be done about them: without a doorbell each would wake this
process, on a core that an engine needs.
"""

import contextlib
import os
import socket

from sidecar.shell.shared_memory import new_memory
from sidecar.wire.memory_pipe import PipeReader

RECEIVE_BYTES = 65_536


class Doorbell:
    """`descriptor` is readable from a ring until `silence`."""

    def __init__(self, stream: int, *, shares_memory: bool = False) -> None:
        """`stream` is the descriptor of the stream, which is read here from now on; with memory that is shared what
        the rank says comes through that. Raises OSError where there is no doorbell to be had, or no memory."""
        with contextlib.ExitStack() as undone:
            self._socket = undone.enter_context(socket.socket(fileno=os.dup(stream)))
            self._socket.setblocking(False)
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undone.callback(os.close, self.descriptor)
            self._given = [self.descriptor]
            self._pipe: PipeReader | None = None
            if shares_memory:
                descriptor, memory = new_memory()
                self._given.append(descriptor)
                undone.callback(memory.close)
                self._pipe = PipeReader(memoryview(memory))
                undone.callback(self._pipe.close)
            self._end = undone.pop_all()

    @property
    def stream(self) -> int:
        return self._socket.fileno()

    @property
    def is_awaited(self) -> bool:
        """The rank may wait for room."""
        return self._pipe is not None and self._pipe.is_awaited

    def give(self, messages: bytes) -> int:
        """Sends these bytes with all that the rank needs for it; how many were taken. Raises OSError."""
        try:
            return socket.send_fds(self._socket, [messages], self._given)
        finally:
            for descriptor in self._given[1:]:
                os.close(descriptor)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def read(self) -> bytes | None:
        """What has been written, b"" at the end of the stream, None if there is nothing. Raises WireError for what no
        plugin writes.

        A rank that has died has said all before its stream ended.
        """
        received = self._said() or self._receive()
        return self._said() if received == b"" else received

    def close(self) -> None:
        self._end.close()

    def _said(self) -> bytes:
        return b"" if self._pipe is None else self._pipe.read(RECEIVE_BYTES)

    def _receive(self) -> bytes | None:
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""
