"""One room, used several times over: which orders there can be, and what must be true of each.

A use is a request with that room. Prefill refuses it at its door, or in its scheduler, aborts it, or serves it; decode
endpoints shake hands for it with both ranks, early or late. A next use begins when prefill is done with the one before.
"""

import enum
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sglang_hooks.life import Life
from sidecar.model import DecodeEndpoint
from tests.orders.world import RANKS, World

ENDPOINTS = [DecodeEndpoint("127.0.0.1", 7001 + number) for number in range(8)]
STEP_LIMIT = 3_000
RESTARTED = 0.2
"""Orders in which the sidecar is killed once. Its successor may tell twice, so no endpoint waits twice there."""

Step = Callable[[], None]


class Fate(enum.Enum):
    REFUSED_AT_DOOR = enum.auto()
    REFUSED_BY_SCHEDULER = enum.auto()
    ABORTED = enum.auto()
    SERVED = enum.auto()


@dataclass(eq=False)
class Shake:
    """One endpoint's handshake for one use, on its way to one rank and after.

    An orphan met a later use that was served: after that its room has not ended, and early is not late.
    """

    use: "Use"
    endpoint: DecodeEndpoint
    rank: int
    arrived: bool = False
    with_stock: bool = False
    is_over: bool = False
    is_orphan: bool = False


@dataclass(eq=False)
class Use:
    fate: Fate
    endpoints: list[DecodeEndpoint] = field(default_factory=list)
    is_sent: bool = False
    is_aborted: bool = False
    has_shaken: bool = False
    done_at: set[int] = field(default_factory=set)
    shakes: list[Shake] = field(default_factory=list)


class ViolationError(AssertionError):
    pass


class Play:
    """Draws the steps of one order from `chance`, plays them in `world`, and complains."""

    def __init__(self, world: World, room: int, chance: random.Random) -> None:
        self._world = world
        self.room = room
        self._chance = chance
        self._uses = [Use(chance.choice(list(Fate))) for _ in range(chance.randint(1, 4))]
        self._current = -1
        self._orders: list[deque[str]] = [deque() for _ in range(RANKS)]
        self._lives: list[Life | None] = [None] * RANKS
        self._writing: list[list[Life]] = [[] for _ in range(RANKS)]
        self._in_air: dict[tuple[DecodeEndpoint, int], deque[Shake]] = defaultdict(deque)
        self._room_may_be_ended = False
        self._sidecars_left = int(chance.random() < RESTARTED)
        self._endpoints = ENDPOINTS if self._sidecars_left else ENDPOINTS[:4]
        self._are_reused = not self._sidecars_left
        self.log: list[str] = []

    # -- what must be true

    def notice(self, endpoint: DecodeEndpoint, rank: int) -> None:
        """Decode is told that the room has failed."""
        self.log.append(f"told {endpoint.port} by rank {rank}")
        for use in self._uses:
            for shake in use.shakes:
                if shake.endpoint == endpoint and not shake.is_over and self._is_waiting(shake):
                    if use.fate is Fate.SERVED:
                        raise ViolationError(f"a request that should run was failed\n{self.story()}")
                    if shake.rank == rank and shake.arrived:
                        shake.is_over = True

    def _is_waiting(self, shake: Shake) -> bool:
        return shake.use.has_shaken

    def finish(self) -> None:
        shakes = [shake for use in self._uses for shake in use.shakes]
        open_shakes = [shake for shake in shakes if not (shake.is_over or shake.is_orphan)]
        if open_shakes:
            hung = ", ".join(
                f"use {self._uses.index(shake.use)} {shake.endpoint.port} at rank {shake.rank}" for shake in open_shakes
            )
            raise ViolationError(f"left hung: {hung}\n{self.story()}")

    def story(self) -> str:
        fates = ", ".join(use.fate.name for use in self._uses)
        return "\n".join([f"room {self.room}: {fates}", *self.log])

    # -- the order

    def run(self) -> None:
        for _ in range(STEP_LIMIT):
            steps = list(self._steps())
            if not steps:
                self.finish()
                return
            self._chance.choice(steps)()
        raise ViolationError(f"does not come to an end\n{self.story()}")

    def _steps(self) -> Iterator[Step]:
        for line in self._world.waiting_lines():
            yield lambda line=line: self._world.deliver(line)
        for rank in range(RANKS):
            yield from self._steps_at(rank)
        for (endpoint, rank), shakes in self._in_air.items():
            if shakes:
                yield lambda endpoint=endpoint, rank=rank: self._arrive(endpoint, rank)
        if self._sidecars_left and self._chance.random() < 0.1:
            yield self._kill_sidecar
        if self._is_done():
            yield self._next_use
        else:
            yield from self._steps_of(self._uses[self._current])

    def _is_done(self) -> bool:
        if self._current < 0:
            return True
        return len(self._uses[self._current].done_at) == RANKS and self._current + 1 < len(self._uses)

    def _steps_at(self, rank: int) -> Iterator[Step]:
        if self._orders[rank]:
            yield lambda: self._obey(rank)
        if self._world.ranks[rank].senderless._released:  # noqa: SLF001 - the pipe of the bootstrap thread
            yield lambda: self._take_released(rank)
        if self._writing[rank]:
            yield lambda: self._finish_chunk(rank)
        use = self._uses[self._current] if self._current >= 0 else None
        if use is not None and use.fate is Fate.SERVED and rank not in use.done_at and self._can_serve(use, rank):
            yield lambda: self._serve(use, rank)

    def _steps_of(self, use: Use) -> Iterator[Step]:
        if not use.is_sent:
            yield lambda: self._send(use)
        if use.fate is Fate.ABORTED and use.is_sent and not use.is_aborted:
            yield self._abort
        if not use.has_shaken and (use.is_sent or not self._room_may_be_ended):
            yield lambda: self._shake(use)

    def _kill_sidecar(self) -> None:
        self._sidecars_left -= 1
        self.log.append("the sidecar is killed")
        order = [*map(str, range(RANKS)), "door"]
        self._chance.shuffle(order)
        self._world.start_sidecar(order)

    # -- prefill's clients and its front

    def _next_use(self) -> None:
        self._current += 1
        self.log.append(f"use {self._current}")

    def _send(self, use: Use) -> None:
        use.is_sent = True
        if use.fate is Fate.REFUSED_AT_DOOR:
            self._world.door.refuse(self.room, "too long", 400)
            self._room_may_be_ended = True
            use.done_at = set(range(RANKS))
            self.log.append("refused at the door")
            return
        self._world.door.accept(self.room)
        self.log.append("accepted")
        for orders in self._orders:
            orders.append("arrive")

    def _abort(self) -> None:
        self.log.append("abort")
        self._uses[self._current].is_aborted = True
        for orders in self._orders:
            orders.append("abort")

    def _done(self, use: Use, rank: int) -> None:
        use.done_at.add(rank)
        if len(use.done_at) == RANKS:
            self._world.door.finish(self.room)
            self._room_may_be_ended = use.fate is not Fate.SERVED
            self.log.append("answered")

    # -- prefill's ranks

    def _obey(self, rank: int) -> None:
        order = self._orders[rank].popleft()
        use = self._uses[self._current]
        self.log.append(f"{order} at rank {rank}")
        if order == "abort":
            life = self._lives[rank]
            assert life is not None
            self._world.ranks[rank].release(life, "Aborted")
            if life.concluded:
                self._done(use, rank)
        elif use.fate is Fate.REFUSED_BY_SCHEDULER:
            self._world.ranks[rank].refuse(self.room, "over capacity", 400)
            self._done(use, rank)
        else:
            self._lives[rank] = self._world.ranks[rank].open(self.room)
            if use.fate is Fate.ABORTED and self._chance.random() < 0.3:
                life = self._world.ranks[rank].chunk_put(self.room)
                assert life is not None
                self._writing[rank].append(life)

    def _finish_chunk(self, rank: int) -> None:
        """An aborted request's client is answered when nothing of it is being written any more."""
        life = self._writing[rank].pop()
        self._world.ranks[rank].chunk_finished(life)
        if life.concluded:
            self._done(self._uses[self._current], rank)

    def _can_serve(self, use: Use, rank: int) -> bool:
        life = self._lives[rank]
        is_open = life is not None and not life.concluded and not self._orders[rank] and use.is_sent
        return is_open and use.has_shaken and all(shake.with_stock for shake in use.shakes if shake.rank == rank)

    def _serve(self, use: Use, rank: int) -> None:
        """Stock tells everyone whose metadata it has."""
        life = self._lives[rank]
        assert life is not None
        self._world.ranks[rank].succeeded(life)
        self._world.ranks[rank].release(life, "")
        self.log.append(f"served by rank {rank}")
        for each in self._uses:
            for shake in each.shakes:
                if shake.rank == rank and shake.with_stock and shake.endpoint in life.endpoints:
                    shake.is_over = True
                elif shake.rank == rank and shake.arrived:
                    shake.is_orphan = True
        self._done(use, rank)

    def _take_released(self, rank: int) -> None:
        frames = self._world.ranks[rank].senderless.take_released()
        self._world.ranks[rank].senderless.put_down()
        if frames is not None:
            number, port = (int(part) for part in frames[0].split(b" "))
            for shake in self._uses[number].shakes:
                if shake.rank == rank and shake.endpoint.port == port:
                    shake.with_stock = True
            self.log.append(f"use {number} {port} released to stock at rank {rank}")

    # -- decode

    def _shake(self, use: Use) -> None:
        use.has_shaken = True
        shakes = [shake for each in self._uses for shake in each.shakes]
        busy = {shake.endpoint for shake in shakes if not (self._are_reused and shake.is_over)}
        free = [endpoint for endpoint in self._endpoints if endpoint not in busy]
        use.endpoints = self._chance.sample(free, min(len(free), self._chance.randint(1, 2)))
        for endpoint in use.endpoints:
            for rank in range(RANKS):
                shake = Shake(use, endpoint, rank)
                use.shakes.append(shake)
                self._in_air[endpoint, rank].append(shake)
        self.log.append(f"decode waits at {[endpoint.port for endpoint in use.endpoints]}")

    def _arrive(self, endpoint: DecodeEndpoint, rank: int) -> None:
        shake = self._in_air[endpoint, rank].popleft()
        shake.arrived = True
        number = self._uses.index(shake.use)
        later = self._uses[number + 1 : self._current + 1]
        shake.is_orphan = any(use.fate is Fate.SERVED and use.is_sent for use in later)
        frames = [f"{number} {endpoint.port}".encode()]
        is_kept = self._world.ranks[rank].meet(self.room, endpoint, "s", frames)
        self._world.ranks[rank].senderless.put_down()
        shake.with_stock = not is_kept
        self.log.append(f"use {number} {endpoint.port} at rank {rank}: {'kept back' if is_kept else 'to stock'}")
