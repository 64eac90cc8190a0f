"""Two prefill servers on one decode server take turns, so that both meet the same noise."""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.demo.stage import prompt
from tests.pair.traffic import Client, Order

TOKENS = 200
WARM_UP = 10
RESAMPLES = 2_000

Turn = tuple[float, float]
"""Seconds of the one, and of the other."""


async def first_token_s(client: Client) -> float:
    """As decode's client has it, which waits for the Success. One token is asked for: the answer is the first token."""
    began = time.monotonic()
    sent = client.send(Order(text=prompt(TOKENS), max_new_tokens=1))
    answers = await asyncio.gather(sent.prefill, sent.decode)
    if not all(answer.is_good for answer in answers):
        raise RuntimeError(f"an answer to normal traffic was bad: {answers}")
    return time.monotonic() - began


async def first_tokens(one: Client, other: Client, *, limit_s: float) -> list[Turn]:
    for _ in range(WARM_UP):
        await first_token_s(one)
        await first_token_s(other)
    return await turns(first_token_s, one, other, limit_s=limit_s)


async def turns(
    spent_s: Callable[[Client], Awaitable[float]], one: Client, other: Client, *, limit_s: float
) -> list[Turn]:
    """Whose turn is first changes each time."""
    taken: list[Turn] = []
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if len(taken) % 2:
            after = await spent_s(other)
            taken.append((await spent_s(one), after))
        else:
            before = await spent_s(one)
            taken.append((before, await spent_s(other)))
    return taken


def ratio(taken: Sequence[Turn]) -> float:
    """The other's median to the one's."""
    return statistics.median(turn[1] for turn in taken) / statistics.median(turn[0] for turn in taken)


def interval(taken: Sequence[Turn]) -> tuple[float, float]:
    """95 % of the ratio, by bootstrap over turns."""
    draw = random.Random(0)  # noqa: S311 - not a secret
    ratios = sorted(ratio(draw.choices(taken, k=len(taken))) for _ in range(RESAMPLES))
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40]
