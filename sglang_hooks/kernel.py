"""Sends without letting go of the GIL.

`socket.send` lets go of it around the system call, and in a scheduler with busy transfer workers a thread waits for
milliseconds until it has it back, for a call that takes microseconds and never blocks.
"""

import ctypes
import os
import socket

_send = ctypes.PyDLL(None, use_errno=True).send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def send_now(stream: socket.socket, data: bytes) -> int:
    """How many bytes the kernel took, at least one. Raises BlockingIOError if it takes none now, OSError if the stream
    is broken (send(2)).
    """
    sent: int = _send(stream.fileno(), data, len(data), _FLAGS)
    if sent < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return sent
