"""What happens to each request of a round. Drawn from a seed, so that a round can be played again."""

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_LENGTHS = (60, 400, 1_100, 2_300, 5_000, 9_500)
"""Tokens of the prompts whose outputs are known."""

ENDING_LENGTHS = (300, 2_000, 6_000, 12_000)
LATEST_S = 2.5
REQUESTS = (5, 9)
ABORT_ALL_SHARE = 0.25


class Fate(enum.Enum):
    KEPT = "kept"
    ABORTED = "aborted"  # by rid, on prefill
    HUNG_UP = "hung_up"  # prefill's client goes away
    DECODE_ABORTED = "decode_aborted"
    LATE = "late"  # aborted before decode comes; then the room is used again


ENDINGS = (Fate.ABORTED, Fate.ABORTED, Fate.HUNG_UP, Fate.DECODE_ABORTED, Fate.LATE)


@dataclass(frozen=True)
class Doing:
    """`known` is the number of the prompt of a request that is kept or follows a late one."""

    fate: Fate
    known: int
    length: int
    after_s: float


@dataclass(frozen=True)
class Round:
    """`abort_all_s`: when everything is aborted at once, if at all."""

    number: int
    doings: Sequence[Doing]
    abort_all_s: float | None
    flush: bool


def plan(seed: int, number: int) -> Round:
    rng = random.Random(seed * 1_000_003 + number)  # noqa: S311 - to be repeatable
    doings = [_doing(rng) for _ in range(rng.randint(*REQUESTS))]
    abort_all_s = rng.uniform(0.1, LATEST_S) if rng.random() < ABORT_ALL_SHARE else None
    return Round(number, doings, abort_all_s, flush=rng.random() < 0.5)


def _doing(rng: random.Random) -> Doing:
    fate = Fate.KEPT if rng.random() < 0.4 else rng.choice(ENDINGS)
    return Doing(fate, rng.randrange(len(KEPT_LENGTHS)), rng.choice(ENDING_LENGTHS), rng.uniform(0.0, LATEST_S))
