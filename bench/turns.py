"""Two prefill servers on one decode server take turns, so that both meet the same noise. The scheduler whose turn it is
not is stopped: an idle one spins, and would take half of the core that they share.
"""

import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from msgspec import Struct

from tests.demo.stage import prompt
from tests.pair.cores import at_rest
from tests.pair.running import Pair
from tests.pair.traffic import Client, Order

TOKENS = 200
WARM_UP = 10
RESAMPLES = 2_000

Turn = tuple[float, float]
"""Seconds of the one, and of the other."""


class Player(Struct, frozen=True):
    client: Client
    schedulers: list[int]


@contextlib.asynccontextmanager
async def players(one: Pair, other: Pair) -> AsyncIterator[tuple[Player, Player]]:
    async with Client(one) as first, Client(other) as second:
        yield Player(first, one.prefill.scheduler_pids()), Player(second, other.prefill.scheduler_pids())


async def first_token_s(client: Client, *, tokens: int = TOKENS) -> float:
    """Until decode's client has it, which waits for the Success. One token is asked for: that answer is the first."""
    began = time.monotonic()
    sent = client.send(Order(text=prompt(tokens), max_new_tokens=1))
    answers = [await sent.decode]
    took_s = time.monotonic() - began
    answers.append(await sent.prefill)
    if not all(answer.is_good for answer in answers):
        raise RuntimeError(f"an answer to normal traffic was bad: {answers}")
    return took_s


async def first_tokens(one: Player, other: Player, *, limit_s: float) -> list[Turn]:
    for _ in range(WARM_UP):
        await first_token_s(one.client)
        await first_token_s(other.client)

    async def turn(player: Player, waits: Player) -> float:
        with at_rest(waits.schedulers):
            return await first_token_s(player.client)

    return await turns(lambda: turn(one, other), lambda: turn(other, one), limit_s=limit_s)


async def turns(
    one: Callable[[], Awaitable[float]], other: Callable[[], Awaitable[float]], *, limit_s: float
) -> list[Turn]:
    """Whose turn is first changes each time."""
    taken: list[Turn] = []
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if len(taken) % 2:
            after = await other()
            taken.append((await one(), after))
        else:
            before = await one()
            taken.append((before, await other()))
    return taken


def ratio(taken: Sequence[Turn]) -> float:
    """The other's median to the one's."""
    return statistics.median(turn[1] for turn in taken) / statistics.median(turn[0] for turn in taken)


def interval(taken: Sequence[Turn]) -> tuple[float, float]:
    """95 % of the ratio, by bootstrap over the turns."""
    draw = random.Random(0)  # noqa: S311 - not a secret
    ratios = sorted(ratio(draw.choices(taken, k=len(taken))) for _ in range(RESAMPLES))
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40]
