"""The rules and the dashboard agree with the collector, and each alert with its runbook."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.monitoring.metric_page import families, names, shown_name
from tests.monitoring.rules import (
    OURS,
    PROMETHEUS,
    REPO,
    RULE_FILES,
    RUNBOOKS,
    Rule,
    alerts,
    names_in,
    panel_queries,
    recorded,
    rules,
)
from tests.monitoring.tools import tool

DOCS = REPO / "docs"
PROMTOOL_LIMIT_S = 60
SECTIONS = ("## What it means", "## Who is affected", "## How to look", "## What to do")


@pytest.fixture(scope="module")
def samples() -> set[str]:
    """Names as the collector serves them."""
    return {name for metric in families() for name in names(metric)}


def promtool(*arguments: str | Path) -> None:
    command = [tool("promtool"), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROMTOOL_LIMIT_S)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", *RULE_FILES)


def test_prometheus_takes_the_example_configuration() -> None:
    promtool("check", "config", "--syntax-only", PROMETHEUS / "prometheus.example.yml")


def test_the_rules_do_what_their_own_tests_say() -> None:
    promtool("test", "rules", *sorted((PROMETHEUS / "tests").glob("*.yml")))


def test_every_rule_has_a_test_of_its_own() -> None:
    tested = "".join(path.read_text() for path in (PROMETHEUS / "tests").glob("*.yml"))
    behind = "".join(rule.expression for rule in alerts() if rule.name in tested)

    assert [rule.name for rule in alerts() if rule.name not in tested] == []
    assert [rule.name for rule in recorded() if rule.name not in tested + behind] == []


def test_rules_read_only_what_there_is(samples: set[str]) -> None:
    known = samples | {rule.name for rule in recorded()}

    assert {rule.name: names_in(rule.expression) - known for rule in rules() if names_in(rule.expression) - known} == {}


def test_the_dashboard_reads_only_what_there_is(samples: set[str]) -> None:
    read = {where: names_in(query) for where, query in panel_queries().items()}

    assert {where: found - samples for where, found in read.items() if found - samples} == {}
    assert all(found or "ALERTS" in panel_queries()[where] for where, found in read.items())


def test_what_an_expression_reads_is_found() -> None:
    """Else the tests above would pass for anything."""
    assert names_in('sum(rate(pd_sidecar_x_total{a="pd_sidecar_y"}[5m])) / host:z:count - sglang:y') == {
        "pd_sidecar_x_total",
        "host:z:count",
    }


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_names_its_page_and_the_page_says_what_to_do(alert: Rule) -> None:
    page = REPO / alert.runbook
    text = page.read_text()

    assert page == RUNBOOKS / f"{alert.name}.md"
    assert text.startswith(f"# {alert.name}\n")
    assert [section for section in SECTIONS if text.count(section) != 1] == []
    assert alert.severity in ("critical", "warning")
    assert alert.summary
    assert f"\n`{alert.severity}`" in text


def test_the_list_of_alerts_is_whole_and_in_order() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\) \| (\w+) \|", (DOCS / "monitoring.md").read_text(), re.M)

    assert listed == [(alert.name, alert.name, alert.severity) for alert in alerts()]


def test_links_in_these_pages_lead_somewhere() -> None:
    pages = [*RUNBOOKS.glob("*.md"), *(DOCS / name for name in ("monitoring.md", "metrics.md", "settings.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", page.read_text())]

    assert len(links) > len(pages)
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_metric_is_on_its_page() -> None:
    page = (DOCS / "metrics.md").read_text()
    missing = [shown_name(metric) for metric in families() if f"| `{shown_name(metric)}` |" not in page]

    assert missing == []


def test_pages_name_no_metric_that_there_is_not(samples: set[str]) -> None:
    shown = {shown_name(metric) for metric in families()}
    pages = [*RUNBOOKS.glob("*.md"), DOCS / "monitoring.md"]
    unknown = {
        (page.name, name)
        for page in pages
        for name in names_in(page.read_text())
        if name.startswith(OURS) and name not in samples | shown
    }

    assert unknown == set()
