"""A real Prometheus with our rules scrapes a real sidecar under load: every query of the dashboard and every recording
rule gives figures, every alert is evaluated, and those fire that should.

PD_SIDECAR_SCRAPE=HOST:PORT[,HOST:PORT...] scrapes a sidecar, and prefill engines with --enable-metrics, that run
already, instead of its own. Some requests must be aborted there meanwhile, else nothing is handed off.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.monitoring.rules import alerts, panel_queries, recorded
from tests.monitoring.scraping import Prometheus, prometheus
from tests.monitoring.stand import scraped_sidecar

LIMIT_S = 150.0
RUNNING = [target for target in os.environ.get("PD_SIDECAR_SCRAPE", "").split(",") if target]

NEEDS_AN_ALERT = "The sidecar itself / Alerts A"
NEEDS_AN_ENGINE = "host:sglang_prefill_schedulers:count"

ALWAYS_ZERO = {
    "Rooms / Pushed out B",  # it takes 262,144 tombstones
    "Rooms / Pushed out C",  # 65,536 open rooms
    "Rooms / Pushed out D",  # 8,192 notices for one endpoint
    "The sidecar itself / Facts that did not count B",  # a rank whose queue overflows: tests/sglang_hooks
}

FIRING = {
    "PdSidecarRankLost",
    "PdSidecarStreamsRefused",
    "PdSidecarNoticesExpired",
    "PdSidecarNoticesWithheld",
    "PdSidecarRecordsEvicted",
    "PdSidecarMalformedInput",
}
PENDING = {"PdSidecarDown", "PdSidecarHookMissing", "PdSidecarRecordsNearLimit"}
"""Those that wait for minutes before they fire."""

needs_load = pytest.mark.skipif(bool(RUNNING), reason="what runs already has a load of its own")


@pytest.fixture(scope="module")
def scraping() -> Iterator[Prometheus]:
    with tempfile.TemporaryDirectory(prefix="pds-") as name:
        folder = Path(name)
        if RUNNING:
            with prometheus(folder, {"running": RUNNING}) as made:
                yield made
        else:
            with scraped_sidecar(folder) as made:
                yield made


def eventually(missing: Callable[[], object]) -> None:
    """Waits until nothing is missing."""
    deadline = time.monotonic() + LIMIT_S
    while found := missing():
        assert time.monotonic() < deadline, found
        time.sleep(1.0)


def test_every_query_of_the_dashboard_gives_figures(scraping: Prometheus) -> None:
    silent = dict(panel_queries())
    if RUNNING:
        del silent[NEEDS_AN_ALERT]

    def still_silent() -> list[str]:
        for where in [where for where, query in silent.items() if scraping.over_time(query)]:
            del silent[where]
        return sorted(silent)

    eventually(still_silent)


def test_every_recording_rule_gives_figures(scraping: Prometheus) -> None:
    wanted = {rule.name for rule in recorded()}
    if len(RUNNING) == 1:
        wanted.remove(NEEDS_AN_ENGINE)
    eventually(lambda: sorted(name for name in wanted if not scraping.over_time(name)))


def test_every_rule_is_evaluated_without_an_error(scraping: Prometheus) -> None:
    wanted = {rule.name for rule in [*recorded(), *alerts()]}
    eventually(lambda: wanted - {name for name, rule in scraping.rules().items() if rule["health"] == "ok"})

    assert {name: rule["lastError"] for name, rule in scraping.rules().items() if rule.get("lastError")} == {}


@needs_load
def test_under_the_load_nothing_stays_at_zero_that_can_move(scraping: Prometheus) -> None:
    """A query that is there but reads the wrong series would be 0 for ever."""
    still = {where: query for where, query in panel_queries().items() if where not in ALWAYS_ZERO}

    def still_zero() -> list[str]:
        for where in [where for where, query in still.items() if _highest(scraping, query) > 0]:
            del still[where]
        return sorted(still)

    eventually(still_zero)

    assert {where for where in ALWAYS_ZERO if _highest(scraping, panel_queries()[where]) > 0} == set()


@needs_load
def test_under_the_load_those_alerts_fire_that_should(scraping: Prometheus) -> None:
    states = dict.fromkeys(FIRING, "firing") | dict.fromkeys(PENDING, "pending")

    def missing() -> list[str]:
        found = scraping.rules()
        return [name for name, state in states.items() if found[name]["state"] not in {state, "firing"}]

    eventually(missing)

    down = scraping.rules()["PdSidecarDown"]["alerts"]
    assert [alert["labels"]["host"] for alert in down] == ["127.0.0.2"]
    assert scraping.rules()["PdSidecarNoRank"]["state"] == "inactive"


def _highest(scraping: Prometheus, query: str) -> float:
    return max((value for series in scraping.over_time(query) for _, value in series.values), default=-1.0)
