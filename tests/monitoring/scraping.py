"""A real Prometheus on loopback with our rules, which scrapes what it is told to."""

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.rules import RULE_FILES
from tests.monitoring.tools import tool
from tests.pair.ports import free_port

START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 30.0
INTERVAL_S = 2

VARIABLES = {"$__rate_interval": f"{5 * INTERVAL_S}s", "$__range": "5m", "$instance": ".*"}
"""Of the dashboard, as Grafana would fill them in for so short a time."""


@dataclass(frozen=True, slots=True)
class Series:
    """Times and values."""

    labels: dict[str, str]
    values: list[tuple[float, float]]


@dataclass(frozen=True)
class Prometheus:
    """`began_at` is the time of its first scrapes."""

    url: str
    began_at: float

    def over_time(self, expression: str) -> list[Series]:
        """What is finite of it up to now."""
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        times = {"start": self.began_at, "end": time.time(), "step": INTERVAL_S}
        answer = self.get("/api/v1/query_range", query=expression, **times)
        found = [Series(said["metric"], list(_finite(said["values"]))) for said in answer["result"]]
        return [series for series in found if series.values]

    def rules(self) -> dict[str, dict[str, Any]]:
        """By name, with health, last error and state, as Prometheus has them."""
        groups = self.get("/api/v1/rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def get(self, path: str, **arguments: object) -> dict[str, Any]:
        asked = f"{self.url}{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(asked, timeout=ANSWER_LIMIT_S) as answer:  # noqa: S310 - our own loopback address
            found: dict[str, Any] = json.load(answer)
        assert found["status"] == "success", found
        data: dict[str, Any] = found["data"]
        return data

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=ANSWER_LIMIT_S) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False


def _finite(values: Sequence[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    return ((at, float(value)) for at, value in values if math.isfinite(float(value)))


@contextmanager
def prometheus(folder: Path, jobs: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
    """`jobs`: the targets of each."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(_config(jobs)))
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        *(tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]
    log = folder / "prometheus.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
    try:
        made = Prometheus(f"http://{address}", time.time())
        deadline = time.monotonic() + START_LIMIT_S
        while not made.is_ready():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"Prometheus is not ready:\n{log.read_text()}"
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(START_LIMIT_S)


def _config(jobs: Mapping[str, Sequence[str]]) -> dict[str, object]:
    interval = f"{INTERVAL_S}s"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in RULE_FILES],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()
        ],
    }
