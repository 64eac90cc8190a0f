"""The sidecar that a plugin started: detached from its engine on purpose, so the pair sees to its end."""

import signal
import socket
import struct
import time
from pathlib import Path

from tests.pair.keeper import send
from tests.pair.progress import say

KILL_LIMIT_S = 5.0
START_LIMIT_S = 30.0


def sidecar_pid(path: Path) -> int | None:
    """Who listens at the socket, said by the kernel. None when nobody does."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(2)
        try:
            line.connect(str(path))
        except OSError:
            return None
        pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def await_sidecar(path: Path) -> None:
    """An engine says that it is healthy while its plugin still starts one. Raises TimeoutError, naming the place."""
    until = time.monotonic() + START_LIMIT_S
    while sidecar_pid(path) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"no sidecar at {path} {START_LIMIT_S:.0f} s after its engine was ready")
        time.sleep(0.1)


def end_sidecar(path: Path, *, limit_s: float) -> None:
    """Wait for it to end by itself, as it does when no rank is left; past the limit end it by its id.

    Asked once only: every connection is a sign of life to it and would put its end off.
    """
    pid = sidecar_pid(path)
    if pid is None or _ends(pid, limit_s):
        return
    say(f"  the sidecar (process {pid}) did not end by itself in {limit_s:.0f} s: ending it")
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(pid, number)
        if _ends(pid, KILL_LIMIT_S):
            return
    raise TimeoutError(f"sidecar process {pid} does not end")


def _ends(pid: int, limit_s: float) -> bool:
    born = _born(pid)
    deadline = time.monotonic() + limit_s
    while (now := _born(pid)) is not None and now == born:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _born(pid: int) -> str | None:
    """Start time of a live process: with it an id that was given to another one is not mistaken."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
