"""Wakes a thread that waits in a poll, from any other thread."""

import contextlib
import os


class Wake:
    """`descriptor` is readable from `ring` until `silence`."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it rings already
            os.write(self._write, b"\0")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
