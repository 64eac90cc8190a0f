"""A stream that is read when its rank rings, not whenever something comes.

Most facts are about normal requests, and nothing is to be done about them: without a doorbell each would wake this
process, on a core that an engine needs.
"""

import contextlib
import os
import socket

RECEIVE_BYTES = 65_536


class Doorbell:
    """`descriptor` is readable from a ring until `silence`. Raises OSError where there are none to be had."""

    def __init__(self, stream: int) -> None:
        """`stream` is the descriptor of the stream, which is read here from now on."""
        self._socket = socket.socket(fileno=os.dup(stream))
        self._socket.setblocking(False)
        try:
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._socket.close()
            raise

    @property
    def stream(self) -> int:
        return self._socket.fileno()

    def give(self, messages: bytes) -> int:
        """Sends these bytes with the doorbell; how many were taken. Raises OSError."""
        return socket.send_fds(self._socket, [messages], [self.descriptor])

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def read(self) -> bytes | None:
        """What has been written, b"" at the end of the stream, None if there is nothing."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def close(self) -> None:
        os.close(self.descriptor)
        self._socket.close()
