"""What docs/troubleshooting.md shows is what the commands print. `python -m tests.docs` writes it anew."""

import re

import pytest

from sidecar import app, cli
from sidecar.detach import EXIT_DIED
from tests.docs.cases import CASES, ROOM, trace_of
from tests.docs.markdown import output
from tests.docs.pages import pages
from tests.pair.paths import REPO

GUIDE = "docs/troubleshooting.md"


@pytest.mark.parametrize("case", CASES)
def test_the_guide_shows_what_the_command_prints(case: str) -> None:
    [block] = [block for block in pages()[GUIDE].blocks if block.mark == case]

    assert block.text.splitlines()[0] == f"$ pd-sidecar trace {ROOM}"
    assert output(block) == trace_of(CASES[case]()), "python -m tests.docs writes it anew"


def test_every_shown_output_is_a_case() -> None:
    shown = [block.mark for page in pages().values() for block in page.blocks if block.mark]
    assert sorted(shown) == sorted(CASES)


def test_every_exit_code_is_explained() -> None:
    table = (REPO / "docs/operations.md").read_text()
    codes = {value for module in (app, cli) for name, value in vars(module).items() if name.startswith("EXIT_")}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes | {EXIT_DIED}
