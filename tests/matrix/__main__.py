"""`python -m tests.matrix`: plays the cells, writes the report; its exit status says whether all is as it must be."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.matrix.cells import BACKENDS, VERSIONS, Build, all_cells, builds
from tests.matrix.lineup import ensure_builds, running_servers
from tests.matrix.playing import play_decode
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
            results += play_backend(backend, builds(versions), builds(versions))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    asked.report.write_text(markdown(results, versions))
    found = [f"{result.cell.name}: {wrong}" for result in results for wrong in unexpected(results, result)]
    for wrong in found:
        print(f"WRONG  {wrong}")
    print(f"{len(results)} cells played, {len(found)} things wrong. Written to {asked.report}")
    return 1 if found else 0


def play_backend(backend: str, prefills: Sequence[Build], decodes: Sequence[Build]) -> list[Result]:
    """All prefill servers stay; the decode servers of one version follow those of the other."""
    versions = list(dict.fromkeys(build.version for build in (*prefills, *decodes)))
    model = ensure_builds(backend, versions)
    results: list[Result] = []
    with running_servers(backend, "prefill", prefills, model) as sources:
        for version in versions:
            wanted = [build for build in decodes if build.version == version]
            with running_servers(backend, "decode", wanted, model) as targets:
                for target in targets:
                    cells = [
                        cell
                        for cell in all_cells(backend, versions)
                        if cell.decode == target.build and cell.prefill in prefills
                    ]
                    results += asyncio.run(play_decode(target, sources, cells, results))
    return results


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
