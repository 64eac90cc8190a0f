"""Where in the file system ranks find the sidecar: private, one server at a time, and never somebody else's."""

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Self

from sidecar.errors import ConfigError, SocketTakenError

PATH_LIMIT_BYTES = 107
"""`sun_path` on Linux."""


class Rendezvous:
    """A bound, listening unix socket and the lock that makes it ours. A context manager: leaving it gives both up.

    Raises ConfigError for a place that cannot be used and SocketTakenError when another sidecar serves it.
    """

    def __init__(self, path: Path, *, group: int | None) -> None:
        self.path = path
        self._group = group
        if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
            raise ConfigError(f"socket path {path} is longer than {PATH_LIMIT_BYTES} bytes: choose a shorter one")
        self._lock, self.listener = self._take(None)
        self._bound_inode = _inode(path)
        self.uid = os.geteuid()

    def is_in_place(self) -> bool:
        """Whether ranks still find the socket: a cleaner of /tmp may have removed it, or the folder with it."""
        return _inode(self.path) == self._bound_inode

    def renew(self) -> None:
        """Binds another listener where the socket has been removed. Raises as at first, and then changes nothing."""
        before = self._lock
        kept = before if _inode(_lock_path(self.path)) == os.fstat(before).st_ino else None
        self._lock, self.listener = self._take(kept)
        self._bound_inode = _inode(self.path)
        if kept is None:
            os.close(before)

    def _take(self, lock: int | None) -> tuple[int, socket.socket]:
        """With that lock, or with one of its own."""
        with contextlib.ExitStack() as undo:
            try:
                _own_directory(self.path.parent, self._group)
                if lock is None:
                    lock = _lock(self.path)
                    undo.callback(os.close, lock)
                _clear(self.path)
                listener = _bind(self.path, self._group)
            except OSError as error:
                raise ConfigError(f"cannot serve {self.path}: {error.strerror or error}") from error
            undo.pop_all()
        return lock, listener

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The lock file stays: removing it would let two processes hold two locks of one name."""
        self.listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self.is_in_place():
                self.path.unlink()
        os.close(self._lock)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _own_directory(directory: Path, group: int | None) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{directory} belongs to uid {found.st_uid}: the socket needs a directory of its own user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{directory} can be written by others: remove that permission or choose another directory")
    if group is not None:
        os.chown(directory, -1, group)
        directory.chmod(0o750)


def _lock(path: Path) -> int:
    lock = os.open(_lock_path(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SocketTakenError(f"another pd-sidecar serves {path}") from None
    return lock


def _clear(path: Path) -> None:
    """Removes what a sidecar that died left behind, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is no socket: remove it or choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its backlog is full, so somebody listens
    raise SocketTakenError(f"another process serves {path}")


def _bind(path: Path, group: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)
    listener.setblocking(False)
    return listener
