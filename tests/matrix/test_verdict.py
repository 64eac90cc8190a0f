"""What a cell must show, and that a cell which does not is called wrong."""

from pathlib import Path

import pytest

from tests.matrix.cells import Build, Cell, all_cells
from tests.matrix.report import markdown, unexpected
from tests.matrix.store import joined, load, save, sources
from tests.matrix.verdict import Result, Seen, runs_in_stock, wrongs

CAUSE = "KVTransferError(bootstrap_room=7): DRAINED_ABORT: Aborted by AbortReq."
GENERIC = "KVTransferError(bootstrap_room=7): Failed to get kvcache from prefill instance, it might be dead"


def cell(prefill: str, decode: str, backend: str = "mooncake") -> Cell:
    return Cell(backend, build(prefill), build(decode))


def build(name: str) -> Build:
    return Build(name.rstrip("+"), name.endswith("+"))


def seen(*, error: str = CAUSE, status: int = 500, lag_s: float = 0.01, is_hung: bool = False) -> Seen:
    return Seen("abort", status, error, lag_s, is_hung)


HUNG = seen(error="Request 7 timed out after 12.0s in KVPoll.WaitingForInput", lag_s=12.0, is_hung=True)


@pytest.mark.parametrize(
    ("played", "is_told", "gets_cause"),
    [
        (cell("0.5.18", "0.5.18"), False, False),
        (cell("0.5.18", "0.5.18+"), False, False),
        (cell("0.5.18+", "0.5.18"), True, False),
        (cell("0.5.18+", "0.5.18+"), True, True),
        (cell("0.5.18+", "0.5.20"), True, False),
        (cell("0.5.18+", "0.5.23"), True, True),
        (cell("0.5.18+", "0.5.18", "nixl"), False, False),
        (cell("0.5.18+", "0.5.18+", "nixl"), True, True),
        (cell("0.5.20+", "0.5.20", "nixl"), True, True),
    ],
    ids=lambda value: value.name if isinstance(value, Cell) else "",
)
def test_what_a_cell_must_show(played: Cell, is_told: bool, gets_cause: bool) -> None:
    assert (played.is_told, played.gets_cause) == (is_told, gets_cause)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (Result(cell("0.5.18+", "0.5.18"), "", (HUNG,)), "was not told"),
        (Result(cell("0.5.18+", "0.5.18"), "", (seen(lag_s=0.9),)), "late"),
        (Result(cell("0.5.18+", "0.5.18"), "", (seen(status=200),)), "answered 200"),
        (Result(cell("0.5.18+", "0.5.23"), "", (seen(error=GENERIC),)), "did not get the cause"),
        (Result(cell("0.5.18+", "0.5.23"), "", (seen(error="DRAINED_ABORT: "),)), "did not get the cause"),
        (Result(cell("0.5.18", "0.5.18"), "", (HUNG,), after="decode answered 500"), "not served any more"),
        (Result(cell("0.5.18", "0.5.18"), "", (HUNG,), complaints=("1 threads died",)), "threads died"),
        (Result(cell("0.5.18", "0.5.18"), "decode answered 500"), "not served"),
    ],
)
def test_what_is_wrong(result: Result, says: str) -> None:
    (wrong,) = wrongs(result)
    assert says in wrong


@pytest.mark.parametrize(
    "result",
    [
        Result(cell("0.5.18", "0.5.18"), "", (HUNG,)),
        Result(cell("0.5.18+", "0.5.18", "nixl"), "", (HUNG,)),
        Result(cell("0.5.18+", "0.5.18"), "", (seen(error=GENERIC),)),
        Result(cell("0.5.18+", "0.5.23"), "", (seen(),)),
    ],
)
def test_what_is_as_it_must_be(result: Result) -> None:
    assert wrongs(result) == []


def test_versions_that_stock_cannot_serve_together_are_no_wrong_and_not_played_with_the_plugin() -> None:
    refused = Result(cell("0.5.23", "0.5.18"), "decode answered 500: no such field")

    assert unexpected([refused], refused) == []
    assert not runs_in_stock([refused], cell("0.5.23+", "0.5.18"))
    assert runs_in_stock([refused], cell("0.5.18+", "0.5.23"))
    assert "| **0.5.23 + plugin** | stock does not serve | stock does not serve |" in markdown(
        [refused], ["0.5.18", "0.5.23"]
    )


def test_with_the_plugin_it_is_one() -> None:
    refused = Result(cell("0.5.23+", "0.5.23"), "decode answered 500")

    assert unexpected([refused], refused) != []
    assert "serves nothing, **WRONG**" in markdown([refused], ["0.5.23"])


def test_a_stock_pair_is_played_before_the_same_versions_with_the_plugin() -> None:
    cells = all_cells("mooncake", ("0.5.18", "0.5.23"))

    assert len(cells) == 16
    for number, one in enumerate(cells):
        stock = cell(one.prefill.version, one.decode.version)
        assert cells.index(stock) <= number


def test_what_is_stored_comes_back_for_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "build" / "matrix.json"
    results = [
        Result(cell("0.5.18+", "0.5.18"), "", (seen(), HUNG), complaints=("a",)),
        Result(cell("0.5.23", "0.5.18"), "b"),
    ]
    save(path, results, played_with=sources())

    assert load(path) == results
    monkeypatch.setattr("tests.matrix.store.sources", lambda: "others")
    assert load(path) == []


def test_a_cell_that_is_played_again_has_its_newer_result() -> None:
    older = [Result(cell("0.5.18", "0.5.18"), "old"), Result(cell("0.5.23", "0.5.23"), "")]
    newer = Result(cell("0.5.18", "0.5.18"), "")

    assert joined(older, [newer]) == [newer, older[1]]


def test_ids_do_not_make_two_reports_different() -> None:
    first, second = (
        Result(cell("0.5.18+", "0.5.18"), "", (seen(error=f"rid {rid} failed after {took} s"),))
        for rid, took in (("00ffeeddccbbaa99", 1.25), ("0123456789abcdef", 3))
    )

    assert markdown([first], ["0.5.18"]) == markdown([second], ["0.5.18"])
