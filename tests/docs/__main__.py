"""`python -m tests.docs`: writes the outputs in docs/troubleshooting.md anew."""

import re

from tests.docs.cases import CASES, ROOM, trace_of
from tests.docs.test_troubleshooting import GUIDE
from tests.pair.paths import REPO


def main() -> None:
    text = (REPO / GUIDE).read_text(encoding="utf-8")
    for case, make in CASES.items():
        shown = f"<!-- output: {case} -->\n```console\n$ pd-sidecar trace {ROOM}\n{trace_of(make())}\n```"
        text, count = re.subn(rf"<!-- output: {case} -->\n```console\n.*?\n```", lambda _: shown, text, flags=re.DOTALL)
        assert count == 1, f"{GUIDE} has {count} blocks marked {case}"
    (REPO / GUIDE).write_text(text, encoding="utf-8")


main()
