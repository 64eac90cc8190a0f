"""A cover of `make matrix`: other versions on either side, and the backends."""

import pytest

from tests.matrix.cells import Build, Cell
from tests.matrix.playing import play
from tests.matrix.verdict import wrongs

OURS, OURS_23, STOCK_23 = (
    Build("0.5.18", plugin=True),
    Build("0.5.23", plugin=True),
    Build("0.5.23", plugin=False),
)
COVER = {
    "mooncake": [Cell("mooncake", OURS, OURS), Cell("mooncake", OURS, STOCK_23), Cell("mooncake", OURS_23, STOCK_23)],
    "nixl": [Cell("nixl", OURS, OURS)],
}


@pytest.mark.parametrize("cells", COVER.values(), ids=COVER)
def test_each_cell_is_as_it_must_be(cells: list[Cell]) -> None:
    results = [result for some in play(cells) for result in some]

    assert [result.cell for result in results] == cells
    assert {result.cell.name: wrong for result in results for wrong in wrongs(result)} == {}
