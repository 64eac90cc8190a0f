"""What is played, and with which engines."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.demo import refusals, scenarios
from tests.demo.figures import OTHER_ENGINES, SEVERAL_RANKS, Criteria
from tests.demo.stage import Scenario
from tests.demo.stock import hangs_in_stock, hears_prefill
from tests.demo.watched import ENGINE_ARGS
from tests.pair.recipes import RECIPES
from tests.pair.side import PairSpec

FULL: tuple[Scenario, ...] = (
    scenarios.abort_all,
    scenarios.abort_one_waiting,
    scenarios.abort_chunked,
    scenarios.abort_running,
    scenarios.abort_inflight,
    scenarios.bootstrap_queue,
    scenarios.disconnect,
    scenarios.late_handshake,
    scenarios.late_handshake_room_reused,
    refusals.too_long,
    refusals.over_capacity,
)
QUICK: tuple[Scenario, ...] = (
    partial(scenarios.abort_all, count=8),
    scenarios.abort_running,
    scenarios.late_handshake,
    refusals.too_long,
    refusals.over_capacity,
)

DEFAULT_SGLANG, DEFAULT_BACKEND = "0.5.18", "mooncake"

PREFILL_POOL = 64_000
PREFILL_CONTEXT = 70_000
DECODE_POOL = 1_000_000
"""P holds the longest prompt that is to be computed. A little more is too much for its pool, and still more for its
context. D holds all that hangs in stock."""


@dataclass(frozen=True)
class Settings:
    """`timeout_s` is D's waiting timeout: nothing that goes well comes near it, even on a slow machine.

    `outputs` is how many answers of both pairs are compared, `turns` how many requests of each make a round of the look
    at speed.
    """

    sglang: str
    backend: str
    tp: int
    pp: int
    timeout_s: int
    scenarios: Sequence[Scenario]
    with_router: bool
    ok_limit_s: float
    outputs: int
    turns: int
    stock_only: bool
    quick: bool
    watched: bool

    @property
    def criteria(self) -> Criteria:
        is_first = self.sglang == DEFAULT_SGLANG and self.backend == DEFAULT_BACKEND
        criteria = SEVERAL_RANKS if self.tp * self.pp > 1 else Criteria() if is_first else OTHER_ENGINES
        return replace(criteria, throughput_ratio=None) if self.quick else criteria

    @property
    def hangs_in_stock(self) -> Sequence[str]:
        return hangs_in_stock(self.sglang)

    @property
    def needs_decode_half(self) -> bool:
        """Stock's D cannot be told: ours has the plugin too, and is a server of its own."""
        return not hears_prefill(self.sglang, self.backend)

    @property
    def fatal_to_stock(self) -> Sequence[Scenario]:
        """A stock pipeline goes on computing what was aborted between chunks. When D then gives up, one stage drops it
        while another waits to compute it, for good: such a P is spent."""
        return (scenarios.abort_chunked,) if self.pp > 1 else ()

    @property
    def survived_by_stock(self) -> Sequence[Scenario]:
        return [one for one in self.scenarios if one not in self.fatal_to_stock]

    def pair(self, *, plugin: bool, with_router: bool = True) -> PairSpec:
        watched = ENGINE_ARGS if self.watched and plugin else ()
        return PairSpec.of(
            sglang=self.sglang,
            backend=self.backend,
            tp=self.tp,
            plugin=plugin,
            router=self.with_router and with_router,
            timeout_s=self.timeout_s,
            # An idle scheduler takes a whole core by default. Where there are only two, the processes that answer
            # clients would wait for one, and the figures would say nothing about who told whom when.
            prefill={
                "args": ("--sleep-on-idle", "--chunked-prefill-size", "4096", *watched),
                "pp": self.pp,
                "max_total_tokens": PREFILL_POOL,
                "context_length": PREFILL_CONTEXT,
            },
            decode={"args": ("--sleep-on-idle",), "max_total_tokens": DECODE_POOL},
        )


def settings() -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo", description="Stock sglang and pd-sidecar side by side."
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer scenarios, in under two minutes; speed is shown and not judged"
    )
    parser.add_argument("--sglang", default=DEFAULT_SGLANG, choices=RECIPES)
    parser.add_argument("--backend", default=DEFAULT_BACKEND, choices=("mooncake", "nixl"))
    parser.add_argument("--tp", type=int, default=1, help="ranks of prefill and of decode")
    parser.add_argument("--pp", type=int, default=1, help="stages of prefill")
    parser.add_argument("--timeout-s", type=int, help="D's waiting timeout (default 50, with --quick 12)")
    parser.add_argument("--stock-only", action="store_true", help="only show how stock behaves; writes no JSON")
    parser.add_argument(
        "--watched", action="store_true", help="a Prometheus scrapes our prefill and its sidecar; not with --quick"
    )
    asked = parser.parse_args()
    if asked.watched and (asked.quick or asked.stock_only):
        parser.error("--watched goes with the whole demo only: not with --quick or --stock-only")
    return Settings(
        sglang=asked.sglang,
        backend=asked.backend,
        tp=asked.tp,
        pp=asked.pp,
        timeout_s=asked.timeout_s or (12 if asked.quick else 50),
        scenarios=QUICK if asked.quick else FULL,
        with_router=not asked.quick,
        ok_limit_s=3.0 if asked.quick else 75.0,
        outputs=6 if asked.quick else 11,
        turns=2 if asked.quick else 6,
        stock_only=asked.stock_only,
        quick=asked.quick,
        watched=asked.watched,
    )
