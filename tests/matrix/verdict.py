"""What was seen in a cell, and whether it is what the cell must show. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.matrix.cells import Cell

TOLD_WITHIN_S = 0.5
GENERIC = ("might be dead", "timed out after")
MARK = "DRAINED_ABORT"


@dataclass(frozen=True)
class Seen:
    """What D's client saw of one request that P gave up."""

    scenario: str
    status: int
    error: str
    lag_s: float
    is_hung: bool

    @property
    def has_cause(self) -> bool:
        """Every cause in here is an abort. The mark that our notices begin with does not count."""
        said = self.error.replace(MARK, "").lower()
        return "abort" in said and not any(text in self.error for text in GENERIC)


@dataclass(frozen=True)
class Result:
    """`before` and `after`: why normal traffic was not served, or nothing."""

    cell: Cell
    before: str
    seen: tuple[Seen, ...] = ()
    after: str = ""
    complaints: tuple[str, ...] = ()

    @property
    def was_served(self) -> bool:
        return not self.before

    @property
    def outcome(self) -> str:
        """For the table."""
        if self.before:
            return "serves nothing"
        if any(one.is_hung for one in self.seen):
            return "hangs"
        return "told, cause" if all(one.has_cause for one in self.seen) else "told"


def wrongs(result: Result) -> list[str]:
    """What must not be. That stock hangs is no wrong where nothing can be told."""
    if result.before:
        return [f"normal traffic is not served: {result.before}"]
    found = list(result.complaints)
    if result.after:
        found.append(f"normal traffic is not served any more: {result.after}")
    if result.cell.is_told:
        found += [wrong for one in result.seen for wrong in _untold(one, with_cause=result.cell.gets_cause)]
    return found


def _untold(one: Seen, *, with_cause: bool) -> list[str]:
    if one.is_hung:
        return [f"{one.scenario}: D was not told, its client waited {one.lag_s:.1f} s"]
    found = []
    if one.status == 200:
        found.append(f"{one.scenario}: D answered 200")
    if one.lag_s > TOLD_WITHIN_S:
        found.append(f"{one.scenario}: D's client was answered {one.lag_s:.2f} s late")
    if with_cause and not one.has_cause:
        found.append(f"{one.scenario}: D's client did not get the cause but {one.error!r}")
    return found


def runs_in_stock(results: Sequence[Result], cell: Cell) -> bool:
    """Whether these two versions serve at all without the plugin. True as long as nothing says otherwise."""
    return not any(
        result.cell.is_stock
        and result.before
        and (result.cell.backend, result.cell.prefill.version, result.cell.decode.version)
        == (cell.backend, cell.prefill.version, cell.decode.version)
        for result in results
    )
