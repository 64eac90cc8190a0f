"""What is measured, and the criteria it is held to."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.pair.answers import LOST, Answer

OWN_TIMEOUT = "timed out after"
"""In the error of a D request that D's own waiting timeout ended, and in no other (sglang `_check_waiting_timeout`)."""

OF_ANOTHER_RANK = "unknown reason from another rank"
HEARTBEAT_LIMIT_S = 15.0
"""With several D ranks the one that answers may not be the one whose timeout it was, and then does not say so. What
else D finds out by itself, by its heartbeat, it does sooner than this."""

ROUTER_LAG_LIMIT_S = 0.5
DEATH_LAG_LIMIT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """`throughput_ratio` None: speed is shown and not judged."""

    lag_median_s: float = 0.05
    lag_max_s: float = 0.25
    throughput_ratio: float | None = 0.98


OTHER_ENGINES = Criteria(lag_median_s=0.25)
"""Versions and backends beside 0.5.18 with Mooncake."""

SEVERAL_RANKS = Criteria(lag_median_s=0.5, lag_max_s=0.5, throughput_ratio=None)
"""Eight schedulers, each of which keeps a core busy, on two cores."""


@dataclass(frozen=True)
class Told:
    """A D request that P gave up: how long D's client waited after that, and whether only D's own timeout ended it."""

    lag_s: float
    is_hung: bool
    ending: str


@dataclass(frozen=True)
class Measured:
    """One scenario on one pair. `complaints` are facts that must not be, beside lag and hang."""

    name: str
    requests: int
    told: tuple[Told, ...]
    complaints: tuple[str, ...] = ()

    @property
    def decode_hung(self) -> int:
        return sum(one.is_hung for one in self.told)

    @property
    def lag_s_median(self) -> float:
        return statistics.median(one.lag_s for one in self.told)

    @property
    def lag_s_max(self) -> float:
        return max(one.lag_s for one in self.told)

    @property
    def endings(self) -> str:
        counts: dict[str, int] = {}
        for one in self.told:
            counts[one.ending] = counts.get(one.ending, 0) + 1
        return ", ".join(f"{count} x {ending}" for ending, count in sorted(counts.items()))


@dataclass(frozen=True)
class Ok:
    """Normal traffic on both pairs: ratios are pd-sidecar to stock, one for each round."""

    outputs_identical: bool
    ratios: tuple[float, ...]

    @property
    def throughput_ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def half_width(self) -> float:
        return half_width(self.ratios)


def half_width(ratios: Sequence[float]) -> float:
    """Of the 95% interval around the median; from the quartiles, so that a burst of foreign load does not widen it."""
    if len(ratios) < 4:
        return math.inf
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return 1.96 * 1.2533 * (upper - lower) / 1.349 / math.sqrt(len(ratios))


def told(answer: Answer, given_up_at: float) -> Told:
    lag_s = answer.answered_at - given_up_at
    is_other_ranks = OF_ANOTHER_RANK in answer.error and lag_s > HEARTBEAT_LIMIT_S
    is_hung = OWN_TIMEOUT in answer.error or is_other_ranks or answer.status == LOST
    ending = "never" if answer.status == LOST else str(answer.status)
    return Told(lag_s, is_hung, ending)


def misses(
    stock: Sequence[Measured],
    ours: Sequence[Measured],
    ok: Ok,
    hangs_in_stock: Sequence[str],
    criteria: Criteria,
) -> list[str]:
    """Every criterion that does not hold, in words."""
    found = [
        f"stock does not hang in {one.name}" for one in stock if one.name in hangs_in_stock and not one.decode_hung
    ]
    for one in ours:
        found += _misses_of(one, criteria)
    if not ok.outputs_identical:
        found.append("ok: outputs differ")
    if criteria.throughput_ratio is not None and ok.throughput_ratio < criteria.throughput_ratio:
        found.append(f"ok: throughput ratio {ok.throughput_ratio:.3f} < {criteria.throughput_ratio}")
    return found


def _misses_of(one: Measured, criteria: Criteria) -> list[str]:
    found = [f"{one.name}: {complaint}" for complaint in one.complaints]
    median_limit, max_limit = criteria.lag_median_s, criteria.lag_max_s
    if one.name == "router":
        median_limit = max_limit = ROUTER_LAG_LIMIT_S
    elif one.name == "p_killed":
        median_limit = max_limit = DEATH_LAG_LIMIT_S
    if one.decode_hung:
        found.append(f"{one.name}: {one.decode_hung} hung")
    if one.lag_s_median > median_limit:
        found.append(f"{one.name}: median lag {one.lag_s_median:.3f} s > {median_limit} s")
    if one.lag_s_max > max_limit:
        found.append(f"{one.name}: largest lag {one.lag_s_max:.3f} s > {max_limit} s")
    return found
