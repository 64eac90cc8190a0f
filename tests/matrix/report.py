"""docs/matrix.md: tables of outcomes, and what D's client reads in each. No I/O."""

import re
from collections.abc import Sequence

from tests.matrix.cells import BACKENDS, Cell, all_cells, builds
from tests.matrix.verdict import Result, runs_in_stock, wrongs

HEAD = """# Which prefill with which decode

Written by `make matrix`, from real pairs on a CPU. The plugin at P tells D; the plugin at D is the decode half. In each
cell: normal traffic, an abort while the request waits, an abort between the chunks of a prompt, a D that shakes hands
after the abort, normal traffic again. No control thread of P or D ended in any cell and no fault of the plugin was
contained, unless the cell says WRONG.

- **told, cause**: D's client was answered at once, with P's reason. **told**: at once, with D's own generic message.
- **hangs**: as in stock, D's client waited for D's own timeout. Nothing tells this D.
- **stock does not serve**: normal traffic fails between the two versions without the plugin; nothing more is played.
- **not played**: not among the cells that the last run was asked for (`make matrix` alone plays all).
- **WRONG**: not what it must be; the reasons are below the tables.
"""
WRAPPING = re.compile(r"Decode (transfer|handshake) failed for request .* with exception KVTransferError\(.*?\): ")
NUMBERS = re.compile(r"\b[0-9a-f]{16}\b|\d+(\.\d+)?")


READ = """What D's client reads, without what sglang wraps it in (`Decode transfer failed for request ... with exception
KVTransferError(...)`); N stands for numbers and ids:"""


def markdown(results: Sequence[Result], versions: Sequence[str]) -> str:
    played = [backend for backend in BACKENDS if any(result.cell.backend == backend for result in results)]
    parts = [HEAD, *(_of_backend(backend, results, versions) for backend in played)]
    if found := [f"- {result.cell.name}: {wrong}" for result in results for wrong in unexpected(results, result)]:
        parts.append("## Wrong\n\n" + "\n".join(found) + "\n")
    return "\n".join(parts)


def unexpected(results: Sequence[Result], result: Result) -> list[str]:
    """A stock pair that serves nothing is a fact about stock."""
    if result.cell.is_stock and not runs_in_stock(results, result.cell):
        return []
    return wrongs(result)


def _of_backend(backend: str, results: Sequence[Result], versions: Sequence[str]) -> str:
    columns = builds(versions)
    by_cell = {result.cell: result for result in results}
    lines = [f"## {backend.upper() if backend == 'nixl' else backend.capitalize()}", ""]
    lines += ["| P \\ D | " + " | ".join(column.name for column in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in columns:
        cells = [_outcome(Cell(backend, row, column), by_cell, results) for column in columns]
        lines.append(f"| **{row.name}** | " + " | ".join(cells) + " |")
    lines += ["", READ, "", "| P | D | scenario | status | message |", "|---|---|---|---|---|"]
    lines += [line for cell in all_cells(backend, versions) if cell in by_cell for line in _read(by_cell[cell])]
    return "\n".join(lines) + "\n"


def _outcome(cell: Cell, by_cell: dict[Cell, Result], results: Sequence[Result]) -> str:
    if not runs_in_stock(results, cell):
        return "stock does not serve"
    if cell not in by_cell:
        return "not played"
    result = by_cell[cell]
    return f"{result.outcome}, **WRONG**" if unexpected(results, result) else result.outcome


def _read(result: Result) -> list[str]:
    """Scenarios in which the client reads the same share a line."""
    pair = f"| {result.cell.prefill.name} | {result.cell.decode.name} |"
    if result.before:
        return [f"{pair} normal traffic | | {_plain(result.before)} |"]
    alike: dict[str, list[str]] = {}
    for one in result.seen:
        alike.setdefault(f"{one.status} | {_plain(one.error)}", []).append(f"`{one.scenario}`")
    return [f"{pair} {', '.join(scenarios)} | {read} |" for read, scenarios in alike.items()]


def _plain(message: str) -> str:
    """Numbers and ids differ from run to run; what sglang wraps each reason in is always the same."""
    return NUMBERS.sub("N", WRAPPING.sub("", message)).replace("|", "\\|").replace("\n", " ")
