"""The ZMQ truth table: situations in which libzmq, left alone, loses messages without a word, played on the sidecar.

The rows are those measured on sends like stock's before this project began; for each of them the tests that stand for
it, which fail if a notice is lost or its end is not counted.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

REPORT = Path("build/truth.xml")
LIMIT_S = 600.0

TRUTH, DECODE, SIDECAR = "tests.shell.test_truth", "tests.faults.test_decode_faults", "tests.faults.test_sidecar_faults"

ROWS: dict[str, list[str]] = {
    "2 refused, opens later": [f"{TRUTH}.test_a_refused_port", f"{TRUTH}.test_a_port_that_opens_later"],
    "3 no route": [f"{TRUTH}.test_an_address_where_nobody_is"],
    "4 packets dropped": [f"{TRUTH}.test_an_address_that_drops_packets"],
    "5 accepted, no ZMTP": [f"{TRUTH}.test_a_peer_that_accepts_and_never_speaks"],
    "8 frozen, then killed": [f"{TRUTH}.test_a_peer_frozen_and_killed_that_comes_back"],
    "10 killed while idle": [f"{TRUTH}.test_a_peer_killed_before_the_hand_off"],
    "11 restarted on its port": [f"{TRUTH}.test_a_peer_restarted_on_the_same_port"],
    "12 killed as it is told": [f"{TRUTH}.test_a_peer_killed_as_it_is_told_and_owed_more_while_it_is_down"],
    "13 closed at once": [f"{TRUTH}.test_a_notice_handed_off_just_before_the_end"],
    "16 cut while sending, healed": [f"{DECODE}.test_links_that_are_cut_and_healed"],
    "17 out of descriptors": [f"{SIDECAR}.test_descriptors_exhausted"],
    "S1 told while down, restarted": [f"{TRUTH}.test_a_peer_killed_as_it_is_told_and_owed_more_while_it_is_down"],
}


def truth_table() -> dict[str, list[str]]:
    """`rows_not_played` are those that this machine cannot play: network namespaces take root and iproute2."""
    outcomes = _play(sorted({test for tests in ROWS.values() for test in tests}))
    by_row = {row: {outcomes.get(test, "failed") for test in tests} for row, tests in ROWS.items()}
    return {
        "rows_failed": [row for row, found in by_row.items() if "failed" in found],
        "rows_not_played": [row for row, found in by_row.items() if found == {"skipped"}],
        "rows_held": [row for row, found in by_row.items() if found == {"passed"}],
    }


def _play(tests: list[str]) -> dict[str, str]:
    """By test, what became of it."""
    nodes = [f"{module.replace('.', '/')}.py::{name}" for module, _, name in (test.rpartition(".") for test in tests)]
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *nodes, "-q", "-p", "no:cacheprovider", f"--junitxml={REPORT}"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    cases = ElementTree.parse(REPORT).iter("testcase")  # noqa: S314 - our own file
    return {f"{case.get('classname')}.{case.get('name')}": _outcome({child.tag for child in case}) for case in cases}


def _outcome(tags: set[str]) -> str:
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"
