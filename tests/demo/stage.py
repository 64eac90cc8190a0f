"""What a scenario plays on: one pair, a client, and the few steps that scenarios share."""

import asyncio
import secrets
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.demo.figures import Measured, Told, told
from tests.pair.answers import LOST, Answer
from tests.pair.running import Pair
from tests.pair.side import Role
from tests.pair.traffic import Client, Order, Sent

Tables = dict[str, Any]

HANDSHAKE_SLACK_S = 0.25
TABLES_LIMIT_S = 5.0


def prompt(tokens: int) -> str:
    """One character is one token. A fresh beginning each time: nothing of it is in P's prefix cache."""
    start = secrets.token_hex(8)
    return (start + "the quick brown fox jumps over the lazy dog " * (tokens // 44 + 1))[:tokens]


@dataclass(frozen=True)
class Owed:
    """A D request that P has given up, at `given_up_at` on the monotonic clock. `prefill`: what P's client got, where
    one waited."""

    decode: asyncio.Task[Answer]
    given_up_at: float
    prefill: Answer | None = None


@dataclass(frozen=True)
class Played:
    """A scenario whose traffic is done: what is left is to wait for D's answers."""

    name: str
    requests: int
    owed: Sequence[Owed]
    complaints: Sequence[str] = ()
    check: Callable[[Sequence[Answer]], list[str]] = field(default=lambda _: [])

    async def measured(self) -> Measured:
        answers = [await one.decode for one in self.owed]
        lags: list[Told] = [told(answer, one.given_up_at) for answer, one in zip(answers, self.owed, strict=True)]
        complaints = (*self.complaints, *self.check(answers), *self._unanswered())
        return Measured(self.name, self.requests, tuple(lags), complaints)

    def _unanswered(self) -> list[str]:
        """D may have been told long before P's client: that is no lag, and wrong all the same."""
        silent = sum(one.prefill is not None and one.prefill.status == LOST for one in self.owed)
        return [f"P's client got no answer {silent} times"] if silent else []


@dataclass(frozen=True)
class Stage:
    pair: Pair
    client: Client
    normal_handshake_s: float

    async def handshakes(self, orders: Sequence[Order], *, limit_s: float = 60.0) -> None:
        """Every D has shaken hands with P."""
        for order in orders:
            await self.handshake_at(order, limit_s=limit_s)

    async def handshake_at(self, order: Order, *, limit_s: float = 60.0) -> float:
        seen = await self.pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=order.room, limit_s=limit_s)
        return float(seen["t"])

    async def computing(self, order: Order, *, chunk: int = 1, limit_s: float = 180.0) -> None:
        """P has begun the forward pass of that chunk."""
        await self.pair.events.wait_for("forward_began", rid=order.rid, count=chunk, limit_s=limit_s)

    async def in_queue(self, queue: str, count: int, *, role: Role = "prefill", limit_s: float = 60.0) -> None:
        """P's queue of that name (`bootstrap`, `inflight`), or D's, holds at least so many."""
        async with asyncio.timeout(limit_s):
            await self._until(lambda tables: tables[queue] >= count, role)

    async def _until(self, holds: Callable[[Tables], bool], role: Role = "prefill") -> None:
        while True:
            if holds(await self.client.tables(role)):
                return
            await asyncio.sleep(0.02)

    async def given_up(self, sent: Sequence[Sent], aborted_at: float) -> list[Owed]:
        """P gave a request up at its answer or at the abort, whichever is later."""
        answers = [await one.prefill for one in sent]
        return [
            Owed(one.decode, max(answer.answered_at, aborted_at), answer)
            for one, answer in zip(sent, answers, strict=True)
        ]

    async def leftovers(self, rooms: Sequence[int]) -> list[str]:
        """What P still holds for these rooms, and metadata slots that are not free, once P is at rest."""
        try:
            async with asyncio.timeout(TABLES_LIMIT_S):
                await self._until(lambda tables: not self._left(tables, rooms))
        except TimeoutError:
            return self._left(await self.client.tables("prefill"), rooms)
        return []

    @staticmethod
    def _left(tables: Tables, rooms: Sequence[int]) -> list[str]:
        left = []
        for name in ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len"):
            if held := sum(str(room) in tables[name] for room in rooms):
                left.append(f"P's {name} still holds {held} of {len(rooms)} rooms")
        if tables["metadata_free"] != tables["metadata_total"]:
            left.append(f"P has {tables['metadata_free']} of {tables['metadata_total']} metadata slots free")
        return left


async def normal_handshake_s(pair: Pair, client: Client) -> float:
    """From sending D a small request to its handshake's arrival at P, in normal traffic. Warms the pair up too."""
    times = []
    for _ in range(5):
        sent = client.send(Order(text=prompt(200)))
        seen = await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=sent.order.room)
        answers = [await sent.prefill, await sent.decode]
        if not all(answer.is_good for answer in answers):
            raise RuntimeError(f"the pair does not serve normal traffic: {answers}")
        times.append(float(seen["t"]) - answers[1].sent_at)
    return statistics.median(times)


Scenario = Callable[[Stage], Awaitable[Played]]
