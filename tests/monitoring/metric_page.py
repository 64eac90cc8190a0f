"""docs/metrics.md: every metric of the collector, in its order, with its labels, their values and its alerts."""

import asyncio
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric

from sidecar.shell.metrics import BACKENDS, ENGINE_TYPES, OTHER, RANK_LABELS
from tests.monitoring.rules import Rule, alerts, metrics_behind
from tests.shell.admin import collector_of
from tests.shell.scene import Service, hello

BEGINNING = """# Metrics

Generated from `sidecar/shell/metrics.py` by `python -m tests.monitoring`; do not edit.

Served at `/metrics` (`--admin`, 127.0.0.1:9464). Counters are there from the start, as 0. No label carries a room, a
request or a decode endpoint, so the number of series is bounded. Rank numbers are sglang's, `other` from 4096 on.
What to watch and what to do about it: [monitoring](monitoring.md).

| metric | type | labels | it is | alerts |
|---|---|---|---|---|
"""

ENDINGS = {"counter": "_total", "info": "_info"}
"""By type, what the exposition adds to a name."""

IN_USE = {"engine_type": (*ENGINE_TYPES, OTHER), "backend": (*BACKENDS, OTHER)}
"""Labels that take one of these values for each rank."""


def families() -> list[Metric]:
    """As a sidecar with one rank gives them."""
    return asyncio.run(_families())


async def _families() -> list[Metric]:
    with tempfile.TemporaryDirectory(prefix="pds-") as folder:
        async with Service(Path(folder) / "s", settle_after_s=5.0) as service:
            service.notifier.receive(1, [hello()], time.monotonic())
            return list(collector_of(service).collect())


def metric_page(found: Iterable[Metric]) -> str:
    behind = [(alert, metrics_behind(alert)) for alert in alerts()]
    return BEGINNING + "".join(f"{_row(metric, behind)}\n" for metric in found)


def names(metric: Metric) -> set[str]:
    """Those that its samples have."""
    return {sample.name for sample in metric.samples}


def shown_name(metric: Metric) -> str:
    return metric.name + ENDINGS.get(metric.type, "")


def _row(metric: Metric, behind: list[tuple[Rule, set[str]]]) -> str:
    used_by = [alert.name for alert, used in behind if used & names(metric)]
    links = ", ".join(f"[{name.removeprefix('PdSidecar')}](runbooks/{name}.md)" for name in used_by)
    cells = (f"`{shown_name(metric)}`", metric.type, _labels(metric), metric.documentation, links)
    return "| " + " | ".join(cells) + " |"


def _labels(metric: Metric) -> str:
    values: dict[str, list[str]] = {}
    for sample in metric.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, []).append(value)
    values.pop("le", None)
    if metric.type == "info":
        return ", ".join(f"`{label}`" for label in values)
    return "; ".join(_label(label, dict.fromkeys(taken)) for label, taken in values.items())


def _label(label: str, taken: Iterable[str]) -> str:
    if label in RANK_LABELS and label not in IN_USE:
        return f"`{label}`"
    return f"`{label}`: {', '.join(IN_USE.get(label, taken))}"
