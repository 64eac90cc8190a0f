"""A prefill rank, or the tokenizer process in front of some, in a process of its own.

`python -m tests.faults.rank_program SOCKET ENGINE RANK TTL_S` has the plugin's own Rank and does what the lines of its
stdin say, each a JSON list of a verb and its arguments; it answers each with a line. RANK `door` makes it a Door.
SIGTERM ends it in order, as sglang's own end does.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from sglang_hooks.door import Door
from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, TOKENIZER, DecodeEndpoint, Hello

GOODBYE_LIMIT_S = 1.0


def hello(engine: str, rank: int, ttl_s: float, role: str = "prefill") -> Hello:
    process = f"{engine}-{role}-{rank}-{os.getpid()}-{time.monotonic_ns()}"
    return Hello(PROTOCOL, process, engine, role, rank, rank, 0, 0, os.getpid(), "0", "mooncake", ttl_s, {})


def make_rank(socket: str, engine: str, number: int, ttl_s: float) -> Rank:
    said = hello(engine, number, ttl_s)
    return Rank(hello=said, socket=socket, record_ttl_s=ttl_s, drain_timeout_s=30.0, on_absent=lambda: None)


class Played:
    """The verbs. A room that is opened stays in `lives` until it is ended."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._lives: dict[int, Any] = {}

    def open(self, room: int, endpoints: list[tuple[str, int]], session: str = "s") -> None:
        self._lives[room] = self._rank.open(room)
        self.meet(room, endpoints, session)

    def meet(self, room: int, endpoints: list[tuple[str, int]], session: str = "s") -> None:
        for host, port in endpoints:
            self._rank.meet(room, DecodeEndpoint(host, port), session)

    def abort(self, room: int) -> None:
        self._rank.release(self._lives.pop(room), "Aborted")

    def succeed(self, room: int) -> None:
        self._rank.succeeded(self._lives[room])

    def finish(self, room: int) -> None:
        """It succeeds, and the engine lets go of it."""
        self.succeed(room)
        self._rank.release(self._lives.pop(room), "")

    def register(self, host: str, port: int, session: str) -> None:
        self._rank.registered(DecodeEndpoint(host, port), session, 18)

    def give_up(self, first: int, count: int, endpoints: list[tuple[str, int]], each: int, pause_s: float) -> float:
        """Rooms opened, shaken hands for by `each` endpoints in turn, and aborted. Answers the longest call."""
        longest_s = 0.0
        for done in range(count):
            began = time.monotonic()
            chosen = [endpoints[(done * each + step) % len(endpoints)] for step in range(each)]
            self.open(first + done, chosen)
            self.abort(first + done)
            longest_s = max(longest_s, time.monotonic() - began)
            if pause_s:
                time.sleep(pause_s)
        return longest_s

    def report(self) -> dict[str, Any]:
        return self._rank.report()

    def has_said_all(self) -> bool:
        """The kernel has it."""
        emitter = self._rank.emitter
        return emitter.traffic.connected and not emitter._unsent and not emitter._part  # noqa: SLF001 - nothing else says it

    def unsettled(self) -> int:
        with self._rank.lock:
            return sum(len(life.owed) for life in self._rank.table.lives() if life.concluded and not life.succeeded)


class PlayedDoor:
    def __init__(self, door: Door) -> None:
        self._door = door

    def refuse(self, room: int, cause: str) -> None:
        self._door.refuse(room, cause, 400)

    def report(self) -> dict[str, Any]:
        return {"stream": {"connected": self._door.emitter.traffic.connected}}


def main(socket: str, engine: str, number: str, ttl_s: float) -> None:
    end: Callable[[], None]
    played: Played | PlayedDoor
    if number == "door":
        said = hello(engine, 0, ttl_s, TOKENIZER)
        door = Door(hello=said, socket=socket, record_ttl_s=ttl_s, on_absent=lambda: None)
        door.emitter.start()
        played, end = PlayedDoor(door), lambda: door.emitter.stop(limit_s=GOODBYE_LIMIT_S)
    else:
        rank = make_rank(socket, engine, int(number), ttl_s)
        rank.emitter.start()
        played, end = Played(rank), lambda: rank.say_goodbye(limit_s=GOODBYE_LIMIT_S)

    def leave(*_: object) -> None:
        end()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    print(json.dumps("up"), flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(played, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
