"""Log output: one JSON object for each line, and files that stay small."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from sidecar.shell.log import BoundedFile, configure


def test_a_full_file_makes_way(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "log", limit_bytes=100)
    for number in range(30):
        file.write(f"line {number:03}\n")
    file.close()

    assert (tmp_path / "log").read_text().endswith("line 029\n")
    assert (tmp_path / "log.1").stat().st_size <= 100
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1"}


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    file = BoundedFile(tmp_path / "log", limit_bytes=100)
    file.write("after\n")
    file.close()

    assert (tmp_path / "log").read_text() == "before\nafter\n"


def test_lines_are_json_and_the_level_counts(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "log")
    configure(level="warning", file=file)
    log = structlog.get_logger("sidecar")
    log.info("quiet")
    log.warning("heard", room=1)
    file.close()
    [line] = (tmp_path / "log").read_text().splitlines()
    said = json.loads(line)

    assert (said["event"], said["level"], said["room"]) == ("heard", "warning", 1)


def test_without_a_file_it_is_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    configure(level="info", file=None)
    structlog.get_logger("sidecar").info("heard")

    assert json.loads(capfd.readouterr().err)["event"] == "heard"


def test_a_file_that_cannot_be_opened_anew_is_tried_again(tmp_path: Path) -> None:
    """Its folder is removed, or no descriptor is left, just when it makes way: a line is lost, the service goes on."""
    folder = tmp_path / "log.d"
    folder.mkdir()
    file = BoundedFile(folder / "log", limit_bytes=100)
    file.write("x" * 90 + "\n")
    folder.rename(tmp_path / "gone")
    for _ in range(3):
        file.write("lost while it cannot be\n")
        file.flush()
    folder.mkdir()
    file.write("heard\n")
    file.close()

    assert (folder / "log").read_text() == "heard\n"


@pytest.mark.parametrize("fault", ["full", "no_reader"])
def test_a_stderr_that_takes_nothing_raises_nothing(fault: str) -> None:
    program = (
        "import structlog; from sidecar.shell.log import configure; configure(level='info', file=None); "
        "structlog.get_logger('sidecar').warning('rank lost')"
    )
    if fault == "full":
        taken = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, taken = os.pipe()
        os.close(reader)
    ended = subprocess.run([sys.executable, "-c", program], stderr=taken, check=False, timeout=30)
    os.close(taken)

    assert ended.returncode == 0


def test_on_a_terminal_it_is_text_for_people() -> None:
    ours, theirs = pty.openpty()
    program = (
        "import structlog; from sidecar.shell.log import configure; configure(level='info', file=None); "
        "structlog.get_logger('sidecar').warning('rank lost', open_rooms=3)"
    )
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True, timeout=30)
    os.close(theirs)
    said = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 4096).decode())
    os.close(ours)

    assert re.search(r"\[warning\s*\] rank lost\s+open_rooms=3", said)
