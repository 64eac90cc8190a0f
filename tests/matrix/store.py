"""build/matrix.json: what was seen, so that a part of the matrix can be played again and the report stays whole."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.matrix.cells import Build, Cell
from tests.matrix.verdict import Result, Seen
from tests.pair.paths import REPO, files_hash

SOURCES = ("sidecar", "sglang_hooks")


def sources() -> str:
    """Results of another plugin or sidecar say nothing about this one."""
    return files_hash([REPO / name for name in SOURCES])


def save(path: Path, results: Sequence[Result], *, played_with: str) -> None:
    """`played_with`: the sources as they were before the first engine was launched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sources": played_with, "results": [asdict(one) for one in results]}, indent=1) + "\n")


def load(path: Path) -> list[Result]:
    """Nothing if there is none, or none of these sources."""
    if not path.exists():
        return []
    stored = json.loads(path.read_text())
    return [_result(fields) for fields in stored["results"]] if stored["sources"] == sources() else []


def joined(older: Sequence[Result], newer: Sequence[Result]) -> list[Result]:
    """The newer result of each cell."""
    return list(({one.cell: one for one in older} | {one.cell: one for one in newer}).values())


def _result(fields: dict[str, Any]) -> Result:
    cell = fields["cell"]
    return Result(
        cell=Cell(cell["backend"], Build(**cell["prefill"]), Build(**cell["decode"])),
        before=fields["before"],
        seen=tuple(Seen(**one) for one in fields["seen"]),
        after=fields["after"],
        complaints=tuple(fields["complaints"]),
    )
