"""Whether a sidecar of this user can serve a socket path, and whether somebody does. It looks and changes nothing."""

import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

PATH_LIMIT_BYTES = 107
"""`sun_path` on Linux."""

CONNECT_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """`fault`: why the path cannot be used; then nobody serves it for us. `served_by`: a process, in words."""

    fault: str | None = None
    served_by: str | None = None


def examine_place(path: Path) -> Place:
    if not path.is_absolute():
        return Place(fault="is relative: give an absolute path")
    if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
        return Place(fault=f"is longer than {PATH_LIMIT_BYTES} bytes: choose a shorter one")
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Place(fault=_fault_of(path.parent))
    except OSError as error:
        return Place(fault=f"cannot be looked at: {error.strerror}")
    if not stat.S_ISSOCK(mode):
        return Place(fault="exists and is no socket: remove it or choose another path")
    return _examine_socket(path)


def _examine_socket(path: Path) -> Place:
    try:
        return Place(served_by=_server_of(path))
    except ConnectionRefusedError:
        return Place(fault=_fault_of(path.parent))  # left behind by one that died; the next one removes it
    except TimeoutError:
        return Place(fault="somebody listens, but does not accept")
    except OSError as error:
        return Place(fault=f"cannot be connected to: {error.strerror}")


def _server_of(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_LIMIT_S)
        probe.connect(os.fspath(path))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return f"pid {pid}" if uid == os.geteuid() else f"pid {pid} of uid {uid}"


def _fault_of(directory: Path) -> str | None:
    try:
        found = directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _fault_of_missing(directory)
    except OSError as error:
        return f"{directory} cannot be looked at: {error.strerror}"
    if found.st_uid != os.geteuid():
        return f"{directory} belongs to uid {found.st_uid}: the socket needs a directory of its own user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{directory} can be written by others: remove that permission or choose another directory"
    return None


def _fault_of_missing(directory: Path) -> str | None:
    """It will be made, if the nearest directory above it lets us."""
    above = next(parent for parent in directory.parents if parent.exists())
    if not above.is_dir():
        return f"{above} is no directory"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{directory} is missing, and uid {os.geteuid()} may not make it in {above}"
    return None
