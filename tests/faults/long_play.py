"""Random traffic and random faults, drawn from a seed: what happens next is repeatable, when it happens is not.

Four engines of one rank each, 24 decode endpoints in six processes, one sidecar after another. Everything is owed to
somebody who comes back in time, so at the end everything has been told; whose rank and whose sidecar have both died
before it was told is counted apart, since nobody is left who knows.
"""

import heapq
import itertools
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.faults.actors import Decode, Rank, Sidecar, Stage
from tests.faults.ledger import Told

ENGINES, DECODES, PORTS = 4, 6, 4
TICK_S = (0.02, 0.3)
CALM_S = (1.0, 6.0)
"""Between two faults."""

LONGEST_OUTAGE_S = 10.0
REUSED_AFTER_S = 12.0
"""When a room may be used again: whatever was on its way to decode has been read."""


@dataclass
class Seen:
    """`orphaned`: notices whose rank and sidecar have both died."""

    counts: Counter[str] = field(default_factory=Counter)
    orphaned: set[Told] = field(default_factory=set)
    sidecar_mb: float = 0.0
    sidecar_descriptors: int = 0
    witness_mb: list[float] = field(default_factory=list)
    longest_call_s: float = 0.0


class LongPlay:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.seen = Seen()
        self._stage = stage
        self._rng = random.Random(seed)  # noqa: S311 - to be repeatable
        self._rooms = itertools.count(1)
        self._turns = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sidecar: Sidecar | None = stage.sidecar()
        self._decodes: list[Decode] = [stage.decode(PORTS) for _ in range(DECODES)]
        self._ranks: list[Rank] = [stage.rank(engine=str(number), number=number) for number in range(ENGINES)]
        self._ailing: set[object] = set()
        self._open: dict[int, list[Told]] = {number: [] for number in range(ENGINES)}
        self._of_the_dead: set[Told] = set()
        self._told: deque[tuple[float, Told]] = deque()
        self._well_since: dict[object, float] = {}
        self._reused: dict[Told, int] = {}

    def play(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        next_fault, next_look = time.monotonic() + 2.0, 0.0
        while (now := time.monotonic()) < ends_at:
            self._do_what_is_due(now)
            if now >= next_look:
                self._look()
                next_look = now + 5.0
            if now >= next_fault:
                self._rng.choice(self._faults())()
                next_fault = time.monotonic() + self._rng.uniform(*CALM_S)
            self._traffic()
            time.sleep(self._rng.uniform(*TICK_S))  # the pace of the traffic

    def end(self) -> None:
        """Everything heals, and all that is owed must have come."""
        while self._due:
            self._do_what_is_due(float("inf"))
        for number, rank in enumerate(self._ranks):
            for room in {room for _, room, _ in self._open[number]}:
                rank.do("abort", room)
            self._stage.ledger.owe(self._open[number])
        ledger = self._stage.ledger
        ledger.wait_for(ledger.owed - self.seen.orphaned)
        for rank in self._ranks:
            rank.hears_all_settled()
        ledger.owed -= ledger.untold() & self.seen.orphaned
        again = {notice: ledger.told[notice] - count for notice, count in self._reused.items()}
        assert not any(again.values()), f"told of a room's old life while its new one was on: {again}"

    # -- traffic

    def _traffic(self) -> None:
        rank = self._rng.choice([one for one in self._ranks if one not in self._ailing])
        decode = self._rng.choice(self._decodes)
        act = self._rng.choices((self._give_up, self._succeed, self._leave_open, self._reuse), (6, 2, 2, 2))[0]
        act(rank, decode)
        self.seen.counts[act.__name__.strip("_")] += 1

    def _fresh(self, count: int) -> range:
        rooms = [next(self._rooms) for _ in range(count)]
        return range(rooms[0], rooms[-1] + 1)

    def _give_up(self, rank: Rank, decode: Decode) -> None:
        rooms, each = self._fresh(self._rng.randint(1, 20)), self._rng.randint(1, PORTS)
        longest_s = rank.give_up(rooms, decode, each=each)
        self.seen.longest_call_s = max(self.seen.longest_call_s, longest_s)
        if each == 1:
            self._told.append((time.monotonic(), (decode.ports[0], rooms.start, rank.number)))

    def _succeed(self, rank: Rank, decode: Decode) -> None:
        (room,) = self._fresh(1)
        rank.do("open", room, decode.addresses)
        rank.do("finish", room)

    def _leave_open(self, rank: Rank, decode: Decode) -> None:
        """It ends some time, or its rank dies before."""
        (room,) = self._fresh(1)
        rank.do("open", room, decode.addresses)
        self._open[rank.number] += [(port, room, rank.number) for port in decode.ports]
        if len(self._open[rank.number]) > 20 * PORTS:
            ended = self._open[rank.number][0][1]
            mine = [notice for notice in self._open[rank.number] if notice[1] == ended]
            self._open[rank.number] = [notice for notice in self._open[rank.number] if notice[1] != ended]
            self._stage.ledger.owe(mine)
            rank.do("abort", ended)

    def _reuse(self, rank: Rank, decode: Decode) -> None:
        """A room that was given up and told, by another request with the same endpoint: it must hear nothing more."""
        before = time.monotonic() - REUSED_AFTER_S
        while self._told and self._told[0][0] < before:
            _, notice = self._told.popleft()
            port, room, number = notice
            where = next(one for one in self._decodes if port in one.ports)
            heard_at = self._stage.ledger.heard_at.get(notice, float("inf"))
            if heard_at < before and all(
                self._is_well(one, before) for one in (self._sidecar, where, self._ranks[number])
            ):
                self._ranks[number].do("open", room, [where.addresses[where.ports.index(port)]])
                self._reused[notice] = self._stage.ledger.told[notice]
                self._ranks[number].do("finish", room)
                self.seen.counts["room reused"] += 1
                return

    def _is_well(self, one: object, since: float) -> bool:
        return one is not None and one not in self._ailing and self._well_since.get(one, 0.0) < since

    # -- faults

    def _faults(self) -> list[Callable[[], None]]:
        """Those that can begin now."""
        faults = [self._decode_killed, self._decode_stopped, self._rank_stopped]
        if self._sidecar is not None and self._sidecar not in self._ailing:
            faults += [self._sidecar_killed, self._sidecar_stopped, self._sidecar_ended, self._socket_removed]
            faults += [self._rank_killed, self._descriptors_exhausted]
        return faults

    def _begin(self, name: str, whose: object, after_s: float, heal: Callable[[], None]) -> None:
        self.seen.counts[name] += 1
        self._ailing.add(whose)

        def healed() -> None:
            heal()
            self._ailing.discard(whose)
            self._well_since[whose] = time.monotonic()

        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._turns), healed))

    def _do_what_is_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _sidecar_killed(self) -> None:
        assert self._sidecar is not None
        self._sidecar.kill()
        self._sidecar_gone("sidecar killed")

    def _sidecar_ended(self) -> None:
        assert self._sidecar is not None
        self._sidecar.signal(signal.SIGTERM)
        self._sidecar.process.wait(60)
        self._sidecar_gone("sidecar ended")

    def _sidecar_gone(self, name: str) -> None:
        self.seen.orphaned |= self._of_the_dead & self._stage.ledger.untold()
        self._of_the_dead.clear()
        gone, self._sidecar = self._sidecar, None

        def start() -> None:
            self._sidecar = self._stage.sidecar()
            self._well_since[self._sidecar] = time.monotonic()

        self._begin(name, gone, self._rng.uniform(0.0, 3.0), start)

    def _sidecar_stopped(self) -> None:
        self._stopped("sidecar stopped", self._sidecar, self._rng.uniform(0.5, 8.0))

    def _stopped(self, name: str, whose: Decode | Rank | Sidecar | None, seconds: float) -> None:
        assert whose is not None
        whose.signal(signal.SIGSTOP)
        self._begin(name, whose, seconds, lambda: whose.signal(signal.SIGCONT))

    def _socket_removed(self) -> None:
        self._stage.socket.unlink(missing_ok=True)
        self.seen.counts["socket removed"] += 1

    def _descriptors_exhausted(self) -> None:
        sidecar = self._sidecar
        assert sidecar is not None
        before = sidecar.limit_descriptors(sidecar.descriptors())

        def heal() -> None:
            sidecar.limit_descriptors(before)

        self._begin("descriptors exhausted", sidecar, self._rng.uniform(0.5, 4.0), heal)

    def _decode_killed(self) -> None:
        decode = self._healthy(self._decodes)
        if decode is not None:
            decode.read_all()
            decode.kill()
            self._begin(
                "decode killed", decode, self._rng.uniform(0.0, LONGEST_OUTAGE_S), lambda: decode.start() and None
            )

    def _decode_stopped(self) -> None:
        decode = self._healthy(self._decodes)
        if decode is not None:
            self._stopped("decode stopped", decode, self._rng.uniform(0.5, LONGEST_OUTAGE_S))

    def _rank_stopped(self) -> None:
        if (rank := self._healthy(self._ranks[1:])) is not None and not self._ailing & set(self._ranks):
            self._stopped("rank stopped", rank, self._rng.uniform(0.5, 3.0))

    def _rank_killed(self) -> None:
        """Never the first one, whose memory is watched."""
        rank = self._healthy(self._ranks[1:])
        if rank is None:
            return
        rank.says_all()
        rank.kill()
        self.seen.counts["rank killed"] += 1
        ledger, number = self._stage.ledger, rank.number
        ledger.owe(self._open[number])
        self._open[number] = []
        self._of_the_dead |= {notice for notice in ledger.untold() if notice[2] == number}
        self._told = deque(entry for entry in self._told if entry[1][2] != number)
        self._ranks[number] = self._stage.rank(engine=str(number), number=number, connected=False)

    def _healthy(self, among: Iterable["Decode | Rank"]) -> "Decode | Rank | None":
        healthy = [one for one in among if one not in self._ailing]
        return self._rng.choice(healthy) if healthy else None

    # -- what is watched

    def _look(self) -> None:
        sidecar, seen = self._sidecar, self.seen
        seen.witness_mb.append(self._ranks[0].rss_mb())
        if sidecar is None or sidecar in self._ailing:
            return
        seen.sidecar_mb = max(seen.sidecar_mb, sidecar.rss_mb())
        seen.sidecar_descriptors = max(seen.sidecar_descriptors, len(os.listdir(f"/proc/{sidecar.pid}/fd")))
