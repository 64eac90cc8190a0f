"""A server under a keeper: logs to a file, is asked by HTTP whether it is ready, always ends with its starter."""

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.pair import keeper
from tests.pair.paths import PAIR
from tests.pair.progress import say, tail

STOP_LIMIT_S = keeper.GRACE_S + keeper.GONE_LIMIT_S + 5.0


class KeptProcess:
    """`name` is for people; `ready_path` answers 200 once the server on `port` serves."""

    def __init__(self, name: str, *, port: int, ready_path: str, log: Path) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._ready_path = ready_path
        self._keeper: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._began = time.monotonic()
        with self.log.open("ab") as out:
            self._keeper = subprocess.Popen(
                [sys.executable, PAIR / "keeper.py", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=self.log.parent,  # not the repository: the engine must import the installed wheel
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float) -> None:
        told = self._began
        while not self._answers():
            now = time.monotonic()
            if self._keeper is None or self._keeper.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready; end of {self.log}:\n{tail(self.log)}")
            if now - self._began > limit_s:
                raise TimeoutError(
                    f"{self.name} was not ready in {limit_s:.0f} s; end of {self.log}:\n{tail(self.log)}"
                )
            if now - told > 10:
                told = now
                say(f"  {self.name} not ready after {now - self._began:.0f} s ...")
            time.sleep(0.25)
        say(f"  {self.name} is ready at {self.url} after {time.monotonic() - self._began:.1f} s")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", self._ready_path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def pids(self, title: str = "") -> list[int]:
        """Ids of its processes; with a title only those whose command line has it, e.g. "sglang::scheduler"."""
        if self._keeper is None:
            return []
        members = [pid for pid in keeper.session_members(self._keeper.pid) if pid != self._keeper.pid]
        return [pid for pid in members if title in _command_line(pid)]

    def kill(self) -> None:
        """SIGKILL to all of it at once: a crash of the whole server."""
        for pid in self.pids():
            keeper.send(pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Tell it to end without waiting, so that several end at the same time. `stop` must still follow."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def stop(self) -> None:
        if self._keeper is None:
            return
        self.let_go()
        try:
            self._keeper.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait(timeout=STOP_LIMIT_S)
        keeper.kill_session(self._keeper.pid)
        self._keeper = None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
