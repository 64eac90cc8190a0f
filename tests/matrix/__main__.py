"""`python -m tests.matrix`: plays the cells, writes the report; its exit status says whether all is as it must be."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.matrix.cells import BACKENDS, VERSIONS, Build, Cell, all_cells, builds
from tests.matrix.playing import play
from tests.matrix.report import markdown, unexpected
from tests.matrix.store import joined, load, save, sources
from tests.pair.paths import REPO, build_dir
from tests.pair.progress import say

REPORT = REPO / "docs" / "matrix.md"


def main() -> int:
    asked = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    results = load(build_dir() / "matrix.json") if asked.keep else []
    played_with = sources()
    try:
        for backend in asked.backends.split(","):
            for some in play(_cells(asked, backend), results):
                results = joined(results, some)
                save(build_dir() / "matrix.json", results, played_with=played_with)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    asked.report.write_text(markdown(results, VERSIONS))
    found = [f"{result.cell.name}: {wrong}" for result in results for wrong in unexpected(results, result)]
    for wrong in found:
        print(f"WRONG  {wrong}")
    print(f"{len(results)} cells, {len(found)} things wrong. Written to {asked.report}")
    return 1 if found else 0


def _cells(asked: argparse.Namespace, backend: str) -> list[Cell]:
    prefills, decodes = (_builds(names) for names in (asked.prefill, asked.decode))
    return [cell for cell in all_cells(backend, VERSIONS) if cell.prefill in prefills and cell.decode in decodes]


def _builds(names: str) -> list[Build]:
    return [Build(name.rstrip("+"), name.endswith("+")) for name in names.split(",")] if names else builds(VERSIONS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="separated by commas")
    parser.add_argument("--prefill", default="", help="only these, e.g. 0.5.18,0.5.23+ (+: with the plugin)")
    parser.add_argument("--decode", default="", help="the same for decode")
    parser.add_argument("--keep", action="store_true", help="keep what build/matrix.json has of other cells")
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
