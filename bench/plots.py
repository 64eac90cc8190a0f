"""`python -m bench.plots`: draws what `python -m bench` (and `bench.soak`) measured last, into bench/plots."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.samples import PATH, Samples

FIGURES, SOAK = Path("build/bench.json"), Path("build/soak.json")
FOLDER = Path(__file__).parent / "plots"
DPI = 90
STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
LIMITS_US = {"append": 2.0, "hand_over": 40.0, "stopped": 30.0, "absent": 30.0}
"""Of the 99.9th percentile."""


def main() -> None:
    samples: Samples = json.loads(PATH.read_text())
    figures = json.loads(FIGURES.read_text())
    FOLDER.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        _draw(
            "enqueue",
            [_distributions("append", "hand_over", "bare_send"), _distributions("alive", "stopped", "absent")],
            samples,
        )
        _draw(
            "latency",
            [_distributions("direct_push", "relayed"), _distributions("direct_push_in_storm", "relayed_in_storm")],
            samples,
        )
        dead = [name for name in samples if name.endswith("_dead") or name.startswith("half_")]
        _draw("head-of-line", [_distributions(*dead)], samples)
        _draw("growth", [_growth("rss_mb"), _growth("idle_cpu_pct"), _growth("scrape_ms")], figures["growth"])
        if SOAK.exists():
            _draw("soak", [_memory], json.loads(SOAK.read_text()))


def _draw(name: str, panels: Sequence[Any], source: Mapping[str, Any]) -> None:
    figure, places = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False)
    for place, panel in zip(places.flat, panels, strict=True):
        panel(place, source)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=DPI)
    plt.close(figure)
    print(FOLDER / f"{name}.png")


def _distributions(*names: str) -> Any:
    """The share of measurements that took longer, both axes logarithmic: the tail is what one wants to see."""

    def panel(place: Axes, samples: Samples) -> None:
        for name in names:
            values = sorted(samples[name])
            share = [1 - number / len(values) for number in range(len(values))]
            (line,) = place.plot(values, share, label=name.replace("_", " "))
            if name in LIMITS_US:
                place.plot(LIMITS_US[name], 0.001, marker="v", color=line.get_color(), linestyle="none")
        place.set(xscale="log", yscale="log", xlabel="us", ylabel="share that took longer")
        place.legend()

    return panel


def _growth(figure: str) -> Any:
    def panel(place: Axes, growth: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        for what, by_count in growth.items():
            counts = [int(count) for count in by_count]
            place.plot(counts, [found[figure] for found in by_count.values()], marker="o", label=what)
        place.set(xlabel="number of them", ylabel=figure, ylim=(0, None))
        place.legend()

    return panel


def _memory(place: Axes, soak: Mapping[str, Any]) -> None:
    place.plot(soak["rss_mb"])
    place.set(xlabel="minutes", ylabel="rss_mb", ylim=(0, None))


if __name__ == "__main__":
    main()
