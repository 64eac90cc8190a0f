"""A real Prometheus with our rules that scrapes prefill and its sidecar while they play (`--watched`)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.monitoring.rules import alerts, panel_queries, recorded
from tests.monitoring.scraping import Prometheus, prometheus
from tests.pair.running import Pair

FIGURES_LIMIT_S = 30.0
RANKS = 'sum(pd_sidecar_ranks{engine_type="prefill"})'
ENGINE_ARGS = ("--enable-metrics",)


@dataclass(frozen=True)
class Seen:
    """`ranks`: as many as the scraped sidecar served at once. `silent`: dashboard queries and recording rules without a
    figure. `errors`: of rules, by name. `fired`: alerts."""

    queries: int
    rules: int
    ranks: int
    silent: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]
    fired: tuple[str, ...]

    def misses(self, ranks: int) -> list[str]:
        found = [f"Prometheus has no figures for {name}" for name in self.silent]
        found += [f"Prometheus cannot evaluate {name}: {error}" for name, error in self.errors]
        if self.ranks < ranks:
            found.append(f"Prometheus saw {self.ranks} of {ranks} ranks")
        return found

    def __str__(self) -> str:
        figures = self.queries - len(self.silent)
        return (
            f"Prometheus: {figures} of {self.queries} queries with figures, {self.rules} rules, {self.ranks} ranks, "
            f"alerts: {', '.join(self.fired) or 'none'}"
        )


class Watch:
    def __init__(self, scraping: Prometheus) -> None:
        self._scraping = scraping
        self._queries = panel_queries() | {rule.name: rule.name for rule in recorded()}

    def seen(self) -> Seen:
        """Waits for what comes only with the next scrapes."""
        deadline = time.monotonic() + FIGURES_LIMIT_S
        while (silent := self._silent()) and time.monotonic() < deadline:
            time.sleep(1.0)
        rules = self._scraping.rules()
        ranks = (value for series in self._scraping.over_time(RANKS) for _, value in series.values)
        return Seen(
            queries=len(self._queries),
            rules=len(rules),
            ranks=int(max(ranks, default=0)),
            silent=tuple(silent),
            errors=tuple((name, rule["lastError"]) for name, rule in rules.items() if rule.get("lastError")),
            fired=tuple(sorted(rule.name for rule in alerts() if _is_firing(rules[rule.name]))),
        )

    def _silent(self) -> list[str]:
        return [name for name, query in self._queries.items() if not self._scraping.over_time(query)]


def _is_firing(rule: dict[str, Any]) -> bool:
    return str(rule["state"]) == "firing"


@contextmanager
def watch(pair: Pair) -> Iterator[Watch]:
    folder = pair.folder / "prometheus"
    folder.mkdir()
    targets = {
        "pd-sidecar": [f"127.0.0.1:{pair.admin_port}"],
        "sglang": [f"127.0.0.1:{pair.prefill.ports.http}"],
    }
    with prometheus(folder, targets) as scraping:
        yield Watch(scraping)
