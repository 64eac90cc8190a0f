"""Sends with the GIL held: they must never wait, and say what the kernel said."""

import contextlib
import socket

import pytest

from sglang_hooks.kernel import send_now


def test_bytes_arrive_as_they_are() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert send_now(ours, b"a\0b") == 3
        assert theirs.recv(10) == b"a\0b"


def test_a_full_stream_takes_nothing_and_nobody_waits() -> None:
    """Though the socket itself is a blocking one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(4096))
        ours.setblocking(True)
        with pytest.raises(BlockingIOError):
            send_now(ours, b"x" * 4096)


def test_a_stream_without_a_reader_is_an_error_and_no_signal() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.close()
    with ours, pytest.raises(BrokenPipeError):
        send_now(ours, b"x")


def test_a_closed_stream_is_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.close()
    with theirs, pytest.raises(OSError, match="Bad file descriptor"):
        send_now(ours, b"x")
