"""`python -m tests.monitoring [--check]`: writes the pages and the dashboard that are made from code.

--check changes nothing and exits with 1 when one of them is stale.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.grafana.dashboard import dashboard
from tests.monitoring.metric_page import families, metric_page
from tests.monitoring.rules import REPO
from tests.monitoring.setting_page import setting_page

MADE: dict[Path, Callable[[], str]] = {
    REPO / "docs" / "metrics.md": lambda: metric_page(families()),
    REPO / "docs" / "settings.md": setting_page,
    REPO / "deploy" / "grafana" / "pd-sidecar.json": dashboard,
}


def stale() -> dict[Path, str]:
    """What each of them should say."""
    made = {path: make() for path, make in MADE.items()}
    return {path: text for path, text in made.items() if not path.exists() or path.read_text() != text}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring")
    parser.add_argument("--check", action="store_true", help="exit code 1 when one is stale; nothing is written")
    is_check = parser.parse_args().check
    found = stale()
    for path, text in found.items():
        if not is_check:
            path.write_text(text)
        print(f"{path.relative_to(REPO)}: {'stale, run python -m tests.monitoring' if is_check else 'written'}")
    sys.exit(1 if is_check and found else 0)


if __name__ == "__main__":
    main()
