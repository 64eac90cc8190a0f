"""`python -m tests.matrix`: plays the cells, writes the report; its exit status says whether all is as it must be."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.matrix.cells import BACKENDS, VERSIONS, all_cells
from tests.matrix.playing import play
from tests.matrix.report import markdown, unexpected
from tests.matrix.verdict import Result
from tests.pair.paths import REPO
from tests.pair.progress import say

REPORT = REPO / "docs" / "matrix.md"


def main() -> int:
    asked = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    versions = asked.versions.split(",")
    results: list[Result] = []
    try:
        for backend in asked.backends.split(","):
            results += play(all_cells(backend, versions))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    asked.report.write_text(markdown(results, versions))
    found = [f"{result.cell.name}: {wrong}" for result in results for wrong in unexpected(results, result)]
    for wrong in found:
        print(f"WRONG  {wrong}")
    print(f"{len(results)} cells played, {len(found)} things wrong. Written to {asked.report}")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="separated by commas")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="separated by commas")
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
