"""The table on the terminal and the JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.demo.figures import Measured
from tests.demo.playing import Shown
from tests.demo.settings import Settings


def as_json(settings: Settings, shown: Shown) -> dict[str, Any]:
    """With `prometheus` where one watched."""
    stock_by_name = {one.name: one for one in shown.stock}
    report = {
        "sglang": settings.sglang,
        "backend": settings.backend,
        "tp": settings.tp,
        "pp": settings.pp,
        "waiting_timeout_s": settings.timeout_s,
        "scenarios": [
            {
                "name": one.name,
                "requests": one.requests,
                "stock": _half(stock_by_name[one.name]),
                "pd_sidecar": _half(one),
            }
            for one in shown.ours
        ],
        "ok": {
            "outputs_identical": shown.ok.outputs_identical,
            "throughput_ratio": round(shown.ok.throughput_ratio, 4),
        },
    }
    return report | ({"prometheus": asdict(shown.seen)} if shown.seen else {})


def _half(one: Measured) -> dict[str, Any]:
    return {
        "decode_hung": one.decode_hung,
        "lag_s_median": round(one.lag_s_median, 4),
        "lag_s_max": round(one.lag_s_max, 4),
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def table(stock: Sequence[Measured], ours: Sequence[Measured]) -> str:
    """Lags in seconds, median and largest. `ours` may be empty."""
    head = f"{'':28}{'':>9}{'stock sglang':^38}{'with pd-sidecar':^38}"
    under = f"{'scenario':28}{'requests':>9}" + 2 * f"{'hung':>6}{'lag s':>9}{'max':>9}  {'D answered':12}"
    lines = [head.rstrip(), under, "-" * len(under)]
    by_name = {one.name: one for one in ours}
    for one in stock:
        other = by_name.get(one.name)
        lines.append(f"{one.name:28}{one.requests:>9}" + _cells(one) + (_cells(other) if other else ""))
    return "\n".join(lines)


def _cells(one: Measured) -> str:
    median, largest = (round(lag, 3) + 0.0 for lag in (one.lag_s_median, one.lag_s_max))  # no -0.000
    return f"{one.decode_hung:>6}{median:>9.3f}{largest:>9.3f}  {one.endings:12}"
