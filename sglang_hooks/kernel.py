"""System calls that are made without letting go of the GIL.

`socket.send` and `os.write` let go of it around the call, and in a scheduler with busy transfer workers a thread waits
for milliseconds until it has it back, for a call that takes microseconds and never blocks.
"""

import ctypes
import os
import socket

_LIBC = ctypes.PyDLL(None, use_errno=True)
_send = _LIBC.send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_eventfd_write = _LIBC.eventfd_write
_eventfd_write.argtypes = (ctypes.c_int, ctypes.c_uint64)
_eventfd_write.restype = ctypes.c_int


def send_now(stream: socket.socket, data: bytes) -> int:
    """How many bytes the kernel took, at least one. Raises BlockingIOError if it takes none now, OSError if the stream
    is broken (send(2)).
    """
    sent: int = _send(stream.fileno(), data, len(data), _FLAGS)
    if sent < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return sent


def ring_now(descriptor: int) -> None:
    """Makes an eventfd readable, if it is not so already (eventfd(3)). It must not be a blocking one."""
    _eventfd_write(descriptor, 1)
