"""What deploy/prometheus and deploy/grafana say, as values."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from deploy.grafana.panels import ROWS

REPO = Path(__file__).resolve().parents[2]
PROMETHEUS = REPO / "deploy" / "prometheus"
RUNBOOKS = REPO / "docs" / "runbooks"
RULE_FILES = (PROMETHEUS / "rules.yml", PROMETHEUS / "alerts.yml")

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
STRING = re.compile(r'"[^"]*"')
OURS = "pd_sidecar_"
LEVELS = ("host:", "instance:")
"""How recording rules begin."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule, or an alert with its runbook."""

    name: str
    expression: str
    is_alert: bool
    severity: str = ""
    summary: str = ""
    runbook: str = ""


@cache
def rules() -> tuple[Rule, ...]:
    groups = (group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"])
    return tuple(_rule(said) for group in groups for said in group["rules"])


def _rule(said: dict[str, object]) -> Rule:
    notes, labels = said.get("annotations", {}), said.get("labels", {})
    assert isinstance(notes, dict)
    assert isinstance(labels, dict)
    return Rule(
        name=str(said.get("alert") or said.get("record")),
        expression=str(said["expr"]),
        is_alert="alert" in said,
        severity=labels.get("severity", ""),
        summary=notes.get("summary", ""),
        runbook=notes.get("runbook_url", ""),
    )


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.is_alert]


def recorded() -> list[Rule]:
    return [rule for rule in rules() if not rule.is_alert]


def names_in(expression: str) -> set[str]:
    """Metrics of ours and of the recording rules that the expression reads."""
    return {name for name in NAME.findall(STRING.sub("", expression)) if name.startswith((OURS, *LEVELS))}


def metrics_behind(rule: Rule) -> set[str]:
    """Through recording rules."""
    sources = {record.name: record for record in recorded()}
    names: set[str] = set()
    for name in names_in(rule.expression):
        names |= metrics_behind(sources[name]) if name in sources else {name}
    return names


def panel_queries() -> dict[str, str]:
    """By row, panel and letter."""
    return {
        f"{row.title} / {panel.title} {letter}": query.expression
        for row in ROWS
        for panel in row.panels
        for letter, query in zip("ABCDEFGH", panel.queries, strict=False)
    }
