"""`python -m tests.monitoring.picture`: the dashboard's panels as pictures in docs/img, drawn from what a Prometheus
scraped of a real sidecar under load.
"""

import argparse
import io
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

from deploy.grafana.panels import ENDPOINTS, ITSELF, NOTICES, RANKS, ROOMS, Kind, Panel, Query, Row
from tests.monitoring.rules import REPO
from tests.monitoring.scraping import Prometheus, Series
from tests.monitoring.stand import scraped_sidecar

PICTURES: dict[str, tuple[Row, ...]] = {"notices.png": (NOTICES, ROOMS), "endpoints.png": (ENDPOINTS, RANKS, ITSELF)}
COLUMNS = 4
COLOURS = 64
"""Enough for lines on white, and a third of the bytes."""

UNITS = {"s": "seconds", "percentunit": "share"}
STYLE: Any = {
    "font.size": 7,
    "axes.titlesize": 8,
    "legend.fontsize": 6,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(scraped: Prometheus, rows: tuple[Row, ...]) -> bytes:
    panels = [panel for row in rows for panel in row.panels]
    lines = -(-len(panels) // COLUMNS)
    with mpl.rc_context(STYLE):
        figure, grid = plt.subplots(lines, COLUMNS, figsize=(3.2 * COLUMNS, 2.5 * lines), squeeze=False)
        for place, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(place, panel, scraped)
        for place in list(grid.flat)[len(panels) :]:
            place.set_axis_off()
        figure.tight_layout()
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=95)
        plt.close(figure)
    small = io.BytesIO()
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(COLOURS).save(small, format="PNG", optimize=True)
    return small.getvalue()


def _draw_panel(place: Axes, panel: Panel, scraped: Prometheus) -> None:
    shown = {
        _legend(query, series): series
        for query in panel.queries
        for series in scraped.over_time(query.expression)
        if any(value for _, value in series.values)
    }
    times = sorted({at for series in shown.values() for at, _ in series.values})
    minutes = [(at - scraped.began_at) / 60 for at in times]
    heights = [_filled(series, times) for series in shown.values()]
    if panel.kind is Kind.STACK:
        place.stackplot(minutes, heights, labels=list(shown), alpha=0.75)
    else:
        for legend, values in zip(shown, heights, strict=True):
            place.plot(minutes, values, label=legend, linewidth=1)
    place.set_title(panel.title, loc="left", fontweight="bold")
    place.set_ylim(bottom=0)
    place.set_ylabel(UNITS.get(panel.unit, "a second" if "rate(" in panel.queries[0].expression else ""))
    place.set_xlabel("minutes", loc="right", labelpad=0)
    place.legend(loc="upper center", bbox_to_anchor=(0.45, -0.12), ncols=2, frameon=False)


def _legend(query: Query, series: Series) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), query.legend)


def _filled(series: Series, times: list[float]) -> list[float]:
    values = dict(series.values)
    return [values.get(at, 0.0) for at in times]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring.picture")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the load is played")
    seconds = parser.parse_args().seconds
    mpl.use("agg")
    with tempfile.TemporaryDirectory(prefix="pds-") as name, scraped_sidecar(Path(name)) as scraped:
        time.sleep(seconds)
        for file, rows in PICTURES.items():
            drawn = draw(scraped, rows)
            (REPO / "docs" / "img" / file).write_bytes(drawn)
            print(f"docs/img/{file}: {len(drawn) // 1024} KB", flush=True)


if __name__ == "__main__":
    main()
