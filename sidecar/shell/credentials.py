"""Who connected, as the kernel saw it then."""

import socket
import struct
from typing import Protocol

from msgspec import Struct

SO_PEERGROUPS = 59
"""Linux 4.13; Python has no name for it."""

GROUPS_LIMIT_BYTES = 1024
"""The most that Python reads: 256 groups."""

_CREDENTIALS = struct.Struct("3i")


class Connection(Protocol):
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


class Credentials(Struct, frozen=True):
    """`groups` has the supplementary ones as well: the modes of a socket let those in too."""

    pid: int
    uid: int
    groups: frozenset[int]


def credentials_of(connection: Connection) -> Credentials:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Credentials(pid, uid, frozenset({gid, *_supplementary(connection)}))


def _supplementary(connection: Connection) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_LIMIT_BYTES)
    except OSError:
        return ()  # an older kernel, or more groups than can be read
    return struct.unpack(f"{len(raw) // 4}I", raw)
