"""`python -m tests.docs`: writes the outputs in docs/troubleshooting.md anew."""

from tests.docs.cases import CASES, ROOM, trace_of
from tests.docs.test_troubleshooting import GUIDE
from tests.pair.paths import REPO


def main() -> None:
    text = (REPO / GUIDE).read_text(encoding="utf-8")
    for case, make in CASES.items():
        head = f"<!-- output: {case} -->\n```console\n"
        before, found, after = text.partition(head)
        assert found, f"{GUIDE} has no block marked {case}"
        _, end, rest = after.partition("\n```")
        text = f"{before}{head}$ pd-sidecar trace {ROOM}\n{trace_of(make())}{end}{rest}"
    (REPO / GUIDE).write_text(text, encoding="utf-8")


main()
