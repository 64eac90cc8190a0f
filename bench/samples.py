"""Single measurements behind the figures, for the plots."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.running import percentile

Figures = dict[str, float]
Samples = dict[str, list[float]]
"""By name, in microseconds."""

PATH = Path("build/bench-samples.json")


def us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def percentiles(name: str, seconds: Sequence[float]) -> Figures:
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {f"{name}_{share}_us": us(percentile(seconds, value)) for share, value in shares.items()}


def keep(samples: Samples, **seconds: Sequence[float]) -> None:
    samples.update({name: [us(each) for each in values] for name, values in seconds.items()})


def save(samples: Samples) -> None:
    PATH.write_text(json.dumps(samples))
