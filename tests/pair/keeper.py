"""Run as a script: keeps one command, and ends everything of its session when the command or the starter is gone.

The starter makes this process the leader of a new session and holds the other end of its standard input. However the
starter ends, even by SIGKILL, that pipe closes and nothing is left behind. Standard library only.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 7.0  # an idle sglang ends about 5 s after SIGTERM
GONE_LIMIT_S = 10.0


def session_members(session: int) -> list[int]:
    """Ids of the processes of a session that are not zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(owner) == session and state != "Z":
            found.append(int(entry.name))
    return found


def kill_session(session: int, *, but: int = 0) -> None:
    """SIGKILL by id until nobody is left, also those started meanwhile."""
    deadline = time.monotonic() + GONE_LIMIT_S
    while members := [pid for pid in session_members(session) if pid != but]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {members} of session {session} do not end")
        for pid in members:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def keep(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    child.terminate()
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
    kill_session(os.getpid(), but=os.getpid())
    return child.wait()


if __name__ == "__main__":
    sys.exit(abs(keep(sys.argv[1:])))
