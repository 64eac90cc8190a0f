"""Who plays: sidecars, ranks and decode endpoints, each a process that can be killed, stopped and started again."""

import contextlib
import json
import os
import re
import resource
import signal
import socket as socket_module
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.faults.ledger import LIMIT_S, Ledger, Told, until
from tests.pair.ports import free_port

Prefix = Sequence[str]
"""What goes before a command: how it gets into a network namespace, say."""


class Actor:
    """A process, and what is read of it in /proc."""

    process: "subprocess.Popen[Any]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sidecar(Actor):
    def __init__(self, socket: Path, *flags: str, prefix: Prefix = (), admin: str = "127.0.0.1", **start: Any) -> None:
        """`start` is passed on to Popen."""
        self.socket = socket
        self._is_elsewhere = bool(prefix)
        self._url = f"http://{admin}:{free_port()}"
        address = self._url.removeprefix("http://")
        command = [*prefix, sys.executable, "-m", "sidecar", "run", "--socket", str(socket), "--admin", address]
        self.process = subprocess.Popen([*command, "--log-level", "error", *flags], **start)

    def wait_ready(self) -> Self:
        until(self._is_served, "the sidecar does not come up")
        return self

    def metric(self, name: str, **labels: str) -> float:
        """0 for a label that has not occurred."""
        said = ",".join(f'{label}="{value}"' for label, value in labels.items())
        wanted = f"pd_sidecar_{name}{{{said}}}" if said else f"pd_sidecar_{name}"
        found = re.search(rf"^{re.escape(wanted)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=LIMIT_S) as answer:  # noqa: S310 - our own address
            return str(answer.read().decode())

    def limit_descriptors(self, count: int) -> int:
        """How many it may have open from now on. Answers how many it might before."""
        before, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (count, hard))
        return before

    def expired(self) -> int:
        return int(self.metric("notices_ended_total", outcome="expired"))

    def settles(self) -> None:
        until(lambda: not self.metric("owed"), "something stays owed")

    def _is_served(self) -> bool:
        """Ranks are served before operators, who find no way into another network namespace."""
        if self.process.poll() is not None:
            raise AssertionError(f"the sidecar ended with {self.process.returncode}")
        host, _, port = self._url.removeprefix("http://").rpartition(":")
        with socket_module.socket(socket_module.AF_UNIX) as probe, socket_module.socket() as admin:
            is_served = probe.connect_ex(str(self.socket)) == 0
            return is_served and (self._is_elsewhere or admin.connect_ex((host, int(port))) == 0)


class Rank(Actor):
    """`number` is the prefill rank, or `door` for a tokenizer process."""

    def __init__(self, socket: Path, *, engine: str = "engine", number: int | str = 0, ttl_s: float = 300.0) -> None:
        command = [sys.executable, "-m", "tests.faults.rank_program", str(socket), engine, str(number), str(ttl_s)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.number = number if isinstance(number, int) else -1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._orders, self._answers = self.process.stdin, self.process.stdout
        self._is_up = False

    def do(self, verb: str, *arguments: object) -> Any:
        self.begin(verb, *arguments)
        return self._answer()

    def begin(self, verb: str, *arguments: object) -> None:
        """`end` has the answer."""
        self._orders.write(json.dumps([verb, *arguments]) + "\n")
        self._orders.flush()

    def end(self) -> Any:
        return self._answer()

    def connected(self) -> Self:
        until(lambda: self.do("report")["stream"]["connected"], "the rank does not connect")
        return self

    def give_up(self, rooms: range, at: "Decode", *, each: int = 1, pause_s: float = 0.0) -> float:
        """And owes it in the ledger. Answers the longest call of the rank."""
        self.owe(rooms, at, each=each)
        return float(self.do("give_up", rooms.start, len(rooms), at.addresses, each, pause_s))

    def owe(self, rooms: range, at: "Decode", *, each: int = 1) -> list[Told]:
        ports = at.ports
        owed = [
            (ports[(done * each + step) % len(ports)], room, self.number)
            for done, room in enumerate(rooms)
            for step in range(each)
        ]
        at.ledger.owe(owed)
        return owed

    def says_all(self) -> None:
        until(lambda: self.do("has_said_all"), "the sidecar does not take what a rank says")

    def hears_all_settled(self) -> None:
        until(lambda: not self.do("unsettled"), "the rank does not hear that all is settled")

    def _answer(self) -> Any:
        """Its first line says only that it is up, which nobody need wait for."""
        if not self._is_up:
            self._is_up = bool(self._answers.readline())
        line = self._answers.readline()
        assert line, "the rank has ended"
        return json.loads(line)


class Decode(Actor):
    """Endpoints of one decode process, which may be started again on the same ports."""

    def __init__(self, ledger: Ledger, count: int = 1, *, host: str = "127.0.0.1", prefix: Prefix = ()) -> None:
        self.ledger = ledger
        self.ports = [free_port() for _ in range(count)]
        self.addresses = [(host, port) for port in self.ports]
        self._host = host
        self._prefix = prefix
        self._has_read = threading.Event()

    def start(self) -> Self:
        ports = [str(port) for port in self.ports]
        command = [*self._prefix, sys.executable, "-m", "tests.faults.decode_program", self._host, *ports]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        lines = self.process.stdout
        assert lines is not None
        assert lines.readline() == "bound\n"
        threading.Thread(target=self._hear, args=(lines,), daemon=True).start()
        return self

    def read_all(self) -> None:
        """What had come to it by now. Nobody could tell that a process has not, if it dies with its connection up."""
        assert self.process.stdin is not None
        self._has_read.clear()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self._has_read.wait(LIMIT_S), "decode does not read"

    def kill(self) -> None:
        super().kill()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _hear(self, lines: Any) -> None:
        with lines:
            for line in lines:
                if line == "read\n":
                    self._has_read.set()
                    continue
                port, room, prefill_rank = line.split()
                self.ledger.hear((int(port), int(room), int(prefill_rank)))


class Stage:
    """Where a scene plays: a socket's place, a ledger, and everybody who is on it, ended with it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.ledger = Ledger()
        self._stack = stack
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pds-"))
        self.folder = Path(folder)
        self.socket = self.folder / "run" / "s"

    def sidecar(self, *flags: str, **start: Any) -> Sidecar:
        return self.keep(Sidecar(self.socket, *flags, **start)).wait_ready()

    def rank(self, *, connected: bool = True, **said: Any) -> Rank:
        rank = self.keep(Rank(self.socket, **said))
        return rank.connected() if connected else rank

    def decode(self, count: int = 1, *, started: bool = True, **where: Any) -> Decode:
        decode: Decode = self.keep(Decode(self.ledger, count, **where))
        return decode.start() if started else decode

    def keep(self, actor: Any) -> Any:
        self._stack.callback(_end, actor)
        return actor


def _end(actor: Any) -> None:
    """One that was never started has no process. Decode's lines are closed by the thread that reads them."""
    process: subprocess.Popen[Any] | None = getattr(actor, "process", None)
    if process is None:
        return
    process.kill()
    process.wait(LIMIT_S)
    pipes = (process.stdin, None if isinstance(actor, Decode) else process.stdout)
    for pipe in pipes:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
