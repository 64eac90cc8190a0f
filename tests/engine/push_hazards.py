"""The three hazards of stock's own pushes, played on sglang's own manager: `python -m tests.engine.push_hazards`.

Each trial is a process of its own, forked from one that has sglang imported: one of them aborts. What is asked of
stock's code is nothing that an engine does not do; its time limit of 30 s is cut to LIMIT_S unless `--whole` is said.
Prints one JSON object: by hazard, and in it `stock` (no plugin) and `all` (PD_SIDECAR_PUSH=all, a real sidecar).
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq

from sglang_hooks.settings import Settings
from sidecar.model import DecodeEndpoint
from tests.engine.stage import Decode, Transfers, installed_plugin, make_manager, wait_until

CUT_LIMIT_MS = 1500
TRIAL_LIMIT_S = 60.0
SESSION = "127.0.0.1:1"
LATER_SENDS = 5
ABORTS = 1001  # one more than a dead socket swallows
BURST = 2000
LONG_CAUSE = b"x" * 8000

DECODE_PROGRAM = """
import sys, zmq
pull = zmq.Context().socket(zmq.PULL)
pull.setsockopt(zmq.RCVHWM, 0)
port = int(sys.argv[1])
port = pull.bind_to_random_port("tcp://127.0.0.1") if not port else (pull.bind(f"tcp://127.0.0.1:{port}"), port)[1]
print(port, flush=True)
while True:
    print(pull.recv_multipart()[0].decode(), flush=True)
"""


class DecodeProcess:
    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-S", "-c", DECODE_PROGRAM, str(port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        assert self._process.stdout is not None
        self._lines: list[str] = []
        self.port = int(self._process.stdout.readline())
        self.endpoint = DecodeEndpoint("127.0.0.1", self.port)
        self.url = f"tcp://127.0.0.1:{self.port}"
        threading.Thread(target=self._read, daemon=True).start()

    def heard(self, room: int, limit_s: float = 3.0) -> bool:
        deadline = time.monotonic() + limit_s
        while str(room) not in self._lines and time.monotonic() < deadline:
            time.sleep(0.002)
        return str(room) in self._lines

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(line.strip() for line in iter(self._process.stdout.readline, ""))


class Prefill:
    """sglang's manager in the prefill role; with a sidecar's socket also the plugin, carrying all."""

    def __init__(self, socket: str | None) -> None:
        plugin = None if socket is None else installed_plugin(settings=carrying(socket))
        self.manager = make_manager(zmq.Context(), Transfers(), threading.Event())
        self.rank: Any = None
        if plugin is not None:
            plugin.after_manager_init(None, self.manager)
            self.rank = vars(self.manager)["_pd_sidecar_rank"]
            wait_until(lambda: self.rank.emitter.is_open, "no sidecar")

    def knows(self, decode: DecodeProcess, session: str = SESSION) -> None:
        if self.rank is not None:
            self.rank.registered(decode.endpoint, session, 18)

    def push(self, decode: DecodeProcess, room: int, *cause: bytes) -> None:
        push = self.manager._send_multipart_locked  # noqa: SLF001 - the place in question
        push(decode.url, [b"%d" % room, b"4", b"0", *cause])

    def cut_limit(self, decode: DecodeProcess, limit_ms: int) -> None:
        if (cached := vars(self.manager)["_socket_cache"].get(decode.url)) is not None:
            cached.setsockopt(zmq.SNDTIMEO, limit_ms)


def carrying(socket: str) -> Settings:
    return Settings(
        disabled=False,
        socket=socket,
        embedded=False,
        drain_timeout_s=30.0,
        record_ttl_s=300.0,
        idle_exit_s=1.0,
        push="all",
    )


def black_hole(socket: str | None, _limit_ms: int) -> dict[str, Any]:
    """S1: one push while decode is down, then decode is back on the same port."""
    prefill, decode = Prefill(socket), DecodeProcess()
    prefill.knows(decode)
    prefill.push(decode, 1)
    before = decode.heard(1)
    decode.kill()
    time.sleep(0.2)  # every monitor has seen it
    prefill.push(decode, 2)
    time.sleep(0.2)
    back = DecodeProcess(decode.port)
    prefill.knows(back, "127.0.0.1:2")
    time.sleep(0.5)
    for room in range(3, 3 + LATER_SENDS):
        prefill.push(back, room)
    arrived = sum(back.heard(room) for room in range(3, 3 + LATER_SENDS))
    back.kill()
    return {"before": before, "sent": LATER_SENDS, "arrived": arrived}


def stall(socket: str | None, limit_ms: int) -> dict[str, Any]:
    """S3: the bootstrap thread answers the ABORTs of a decode that is gone; then a living one shakes hands."""
    prefill, decode = Prefill(socket), DecodeProcess()
    prefill.knows(decode)
    decode.kill()
    prefill.manager.decode_kv_args_table[SESSION] = None  # it has registered
    prefill.manager.start_prefill_thread()
    context = zmq.Context()
    to_prefill = context.socket(zmq.PUSH)
    to_prefill.connect(f"tcp://127.0.0.1:{prefill.manager.rank_port}")
    living = Decode(to_prefill, to_prefill, 1, SESSION)
    abort = [b"ABORT", b"7", b"127.0.0.1", b"%d" % decode.port]
    to_prefill.send_multipart(abort)
    living.handshake(1, required=2)
    wait_until(lambda: 1 in prefill.manager.transfer_infos, "no handshake")
    prefill.cut_limit(decode, limit_ms)
    for _ in range(ABORTS):
        to_prefill.send_multipart(abort)
    began = time.monotonic()
    living.handshake(2, required=2)
    while 2 not in prefill.manager.transfer_infos:
        assert time.monotonic() < began + TRIAL_LIMIT_S, "the bootstrap thread does not come back"
        time.sleep(0.001)
    return {"handshake_s": round(time.monotonic() - began, 3)}


def closed_under_a_sender(socket: str | None, limit_ms: int) -> dict[str, Any]:
    """S2: a worker pushes to a decode that is frozen; it is killed, and another thread pushes to it. What that does to
    the worker shows at the latest when its time is up."""
    prefill, decode = Prefill(socket), DecodeProcess()
    prefill.knows(decode)
    prefill.push(decode, 1)
    decode.heard(1)
    prefill.cut_limit(decode, limit_ms)
    decode.freeze()
    pushed: list[float] = []

    def push_on() -> None:
        with contextlib.suppress(zmq.ZMQError):
            for room in range(BURST):
                began = time.monotonic()
                prefill.push(decode, room, LONG_CAUSE)
                pushed.append(time.monotonic() - began)

    worker = threading.Thread(target=push_on, daemon=True)
    worker.start()
    seen = -1
    while worker.is_alive() and len(pushed) != seen:
        seen = len(pushed)
        worker.join(0.3)
    is_blocked = worker.is_alive()
    decode.kill()
    time.sleep(0.1)
    other = threading.Thread(target=prefill.push, args=(decode, 9), daemon=True)
    began = time.monotonic()
    other.start()
    other.join(2 * limit_ms / 1000)
    other_s = time.monotonic() - began
    worker.join(2 * limit_ms / 1000)
    return {
        "blocked": is_blocked,
        "other_s": round(other_s, 3),
        "longest_push_ms": round(1000 * max(pushed), 1),
    }


HAZARDS: dict[str, Callable[[str | None, int], dict[str, Any]]] = {
    "black_hole": black_hole,
    "stall": stall,
    "closed_under_a_sender": closed_under_a_sender,
}


def played(hazard: str, socket: str | None, limit_ms: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(theirs, hazard, socket, limit_ms))
    process.start()
    theirs.close()
    came: dict[str, Any] = {}
    if ours.poll(TRIAL_LIMIT_S):
        with contextlib.suppress(EOFError):
            came = ours.recv()
    process.join(TRIAL_LIMIT_S)
    if process.exitcode:
        came["exit"] = process.exitcode
    return came


def _play(answer: Connection, hazard: str, socket: str | None, limit_ms: int) -> None:
    """Leaves without waiting for anything that is stuck."""
    try:
        answer.send(HAZARDS[hazard](socket, limit_ms))
    except BaseException:  # whatever it is, the threads of the engine would keep this process alive
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


@contextlib.contextmanager
def running_sidecar() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pds") as folder:
        socket = str(Path(folder) / "d" / "s")
        words = ["run", "--socket", socket, "--admin", "off", "--log-level", "error"]
        process = subprocess.Popen([sys.executable, "-m", "sidecar", *words])
        try:
            deadline = time.monotonic() + TRIAL_LIMIT_S
            while not Path(socket).exists():
                assert time.monotonic() < deadline, "no sidecar"
                time.sleep(0.01)
            yield socket
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=4, help="of closed_under_a_sender")
    parser.add_argument("--whole", action="store_true", help="stock's own limit of 30 s")
    parser.add_argument("--hazards", nargs="*", default=list(HAZARDS), choices=list(HAZARDS))
    words = parser.parse_args()
    limit_ms = 30_000 if words.whole else CUT_LIMIT_MS
    results: dict[str, Any] = {}
    with running_sidecar() as socket:
        for hazard in words.hazards:
            trials = words.trials if hazard == "closed_under_a_sender" else 1
            results[hazard] = {
                name: [played(hazard, where, limit_ms) for _ in range(trials)]
                for name, where in (("stock", None), ("all", socket))
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
