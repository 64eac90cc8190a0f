"""SIGKILL of the sidecar amid many aborts: the rank replays, its successor tells, no endpoint misses a room.

What was handed off, and of which the rank has not heard yet that this stands, is told again: that takes some 20 ms, so
it is the pace of the aborts that decides how many.
"""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import zmq

from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, DecodeEndpoint, Hello

LONG = bool(os.environ.get("PD_SIDECAR_LONG"))
KILLS = 20 if LONG else 1
ENDPOINTS = 64
ROOMS = 2000
ENDPOINTS_OF_A_ROOM = 1
LIMIT_S = 30.0
TOLD_AGAIN_LIMIT = 0.01 if LONG else 0.05
"""The claim is 1 % over 20 kills. One kill on a machine busy with other tests says less: what falls into the moment
before it depends on who had the core."""

BURST_S, PACED_S = 0.0, 0.002
"""Between two aborts. Paced is 500 a second: more than any engine gives up for long, and 2,000 in 4 s."""


class Ears:
    """PULL sockets as decode binds them, heard by one thread: how often each was told of each room."""

    def __init__(self) -> None:
        self.told: Counter[tuple[int, int]] = Counter()
        self._changed = threading.Condition()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pulls: dict[zmq.Socket[bytes], int] = {}
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._poller = zmq.Poller()
        self.endpoints: list[DecodeEndpoint] = []
        for number in range(ENDPOINTS):
            pull = self._context.socket(zmq.PULL)
            self.endpoints.append(DecodeEndpoint("127.0.0.1", pull.bind_to_random_port("tcp://127.0.0.1")))
            self._pulls[pull] = number
            self._poller.register(pull, zmq.POLLIN)
        self._thread = threading.Thread(target=self._hear, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._context.socket(zmq.PAIR) as bell:
            bell.connect("inproc://stop")
            bell.send(b"")
            self._thread.join(10.0)
        self._context.destroy(linger=0)

    def wait_for(self, expected: set[tuple[int, int]]) -> None:
        with self._changed:
            complete = self._changed.wait_for(lambda: expected <= self.told.keys(), LIMIT_S)
        assert complete, f"{len(expected - self.told.keys())} of {len(expected)} were never told"

    def _hear(self) -> None:
        self._poller.register(self._stop, zmq.POLLIN)
        while True:
            ready = [one for one, _ in self._poller.poll()]
            if self._stop in ready:
                return
            with self._changed:
                for pull in ready:
                    self._drain(pull)
                self._changed.notify_all()

    def _drain(self, pull: "zmq.Socket[bytes]") -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                room, status, prefill_rank = pull.recv_multipart(zmq.NOBLOCK)
                assert (status, prefill_rank) == (b"0", b"0")
                self.told[self._pulls[pull], int(room)] += 1


@contextlib.contextmanager
def sidecar(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "sidecar", "run", "--socket", str(path), "--admin", "off", "--log-level", "error"]
    running = subprocess.Popen(command)
    try:
        yield running
    finally:
        running.kill()
        running.wait(10.0)


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Rank]:
    said = Hello(PROTOCOL, f"p{path.name}", "e", "prefill", 0, 0, 0, 0, os.getpid(), "0", "mooncake", 300.0, {})
    rank = Rank(hello=said, socket=str(path), record_ttl_s=300.0, drain_timeout_s=30.0, on_absent=lambda: None)
    rank.emitter.start()
    try:
        yield rank
    finally:
        rank.emitter.stop(limit_s=10.0)


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def give_up(rank: Rank, room: int, endpoints: list[DecodeEndpoint]) -> None:
    life = rank.open(room)
    for endpoint in endpoints:
        rank.meet(room, endpoint, "s")
    rank.release(life, "Aborted")


def crash_once(path: Path, ears: Ears, first_room: int, *, pause_s: float) -> tuple[int, int]:
    """2,000 aborts, and the sidecar killed somewhere among them. Answers told pairs and pairs told again."""
    kill_at = random.Random(first_room).randrange(ROOMS // 4, 3 * ROOMS // 4)  # noqa: S311 - to be repeatable
    expected: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as stack:
        doomed = stack.enter_context(sidecar(path))
        rank = stack.enter_context(serving(path))
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        for done in range(ROOMS):
            if done == kill_at:
                doomed.kill()
                doomed.wait(10.0)
                stack.enter_context(sidecar(path))
            hearing = [(done + step) % ENDPOINTS for step in range(ENDPOINTS_OF_A_ROOM)]
            expected.update((number, first_room + done) for number in hearing)
            give_up(rank, first_room + done, [ears.endpoints[number] for number in hearing])
            time.sleep(pause_s)
        ears.wait_for(expected)
        wait_until(lambda: not any(life.owed for life in rank.table.lives()), "not all were settled")
        traffic = rank.emitter.traffic
    assert traffic.connects >= 2
    again = sum(ears.told[pair] > 1 for pair in expected)
    print(f"killed at {kill_at} of {ROOMS}: {len(expected)} told, {again} more than once, {traffic.connects} streams")
    return len(expected), again


def crashes(tmp_path: Path, *, pause_s: float) -> float:
    """The share that was told more than once."""
    told = again = 0
    with Ears() as ears:
        for number in range(KILLS):
            path = tmp_path / f"{number}" / "s.sock"
            path.parent.mkdir(mode=0o700)
            counts = crash_once(path, ears, number * ROOMS, pause_s=pause_s)
            told, again = told + counts[0], again + counts[1]
    print(f"{KILLS} kills, {pause_s} s between aborts: {told} told, {again} more than once: {again / told:.2%}")
    return again / told


def test_no_endpoint_misses_a_room_and_few_are_told_twice(tmp_path: Path) -> None:
    assert crashes(tmp_path, pause_s=PACED_S) <= TOLD_AGAIN_LIMIT


def test_no_endpoint_misses_a_room_in_a_burst(tmp_path: Path) -> None:
    """As fast as a rank can: what falls into the moment before the kill may be a good part of all."""
    crashes(tmp_path, pause_s=BURST_S)
