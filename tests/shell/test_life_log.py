"""One line for each life that ended without success, and few lines however much happens."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from sidecar.shell.life_log import CAUSE_LIMIT, EVENT, LifeLog
from sidecar.shell.log import LINES_IN_WINDOW, WINDOW_S, BoundedFile, Repeats, configure
from tests.core.scene import E1, E2, Scene
from tests.shell.scene import Rank, decode
from tests.shell.test_process import logged, sidecar


class Journal:
    """Lines as they would stand in a file."""

    def __init__(self, path: Path, level: str = "info") -> None:
        self.repeats = Repeats()
        self._path = path
        self._file = BoundedFile(path)
        configure(level=level, file=self._file, repeats=self.repeats)

    def lines(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def close(self) -> None:
        self._file.close()
        structlog.reset_defaults()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "log")
    yield opened
    opened.close()


def told(journal: Journal, scene: Scene) -> list[dict[str, Any]]:
    LifeLog(scene.notifier, journal.repeats).report(scene.notifier.take_finished())
    return journal.lines(EVENT)


def test_a_life_is_one_line_when_it_is_over(journal: Journal) -> None:
    scene = Scene()
    scene.join()
    scene.die(E2)
    scene.opened(7, 1)
    scene.handshake(7, 1, E1)
    scene.handshake(7, 1, E2)
    scene.failed(7, 1, cause="Aborted by AbortReq.", http_status=499)
    assert told(journal, scene) == []

    scene.advance(5.0)
    assert told(journal, scene) == []
    scene.advance(295.0)
    [line] = told(journal, scene)
    line.pop("timestamp")
    assert line.pop("refusals") > 10
    assert line == {
        "event": "life ended",
        "level": "info",
        "room": 7,
        "life": 1,
        "process": "p",
        "prefill_rank": 0,
        "cause": "Aborted by AbortReq.",
        "http_status": 499,
        "drained": True,
        "end_took_s": None,
        "endpoints": 2,
        "still_owed": 0,
        "outcomes": {"held_up": 1, "expired": 1},
        "forms": {"bare": 1},
        "hand_offs": 1,
        "to_last_hand_off_s": 0.0,
        "to_settled_s": 5.0,
    }


def test_a_success_is_no_line(journal: Journal) -> None:
    scene = Scene()
    scene.join()
    scene.handshake(7, 1, E1)
    scene.succeeded(7, 1)
    scene.advance(600.0)

    assert told(journal, scene) == []


def test_a_long_cause_is_cut(journal: Journal) -> None:
    """An engine's error may quote its input."""
    scene = Scene()
    scene.join()
    scene.failed(7, 1, cause="x" * 4000)

    assert len(told(journal, scene)[0]["cause"]) == CAUSE_LIMIT


def test_a_storm_of_20000_ends_is_a_few_lines_and_a_count(journal: Journal) -> None:
    scene = Scene()
    scene.join()
    for room in range(20_000):
        scene.failed(room, room + 1)
    begin = time.process_time()
    lines = told(journal, scene)
    took_s = time.process_time() - begin
    journal.repeats.roll_over()

    assert len(lines) == LINES_IN_WINDOW
    [summary] = journal.lines("lines suppressed")
    assert (summary["of"], summary["count"], summary["within_s"]) == (EVENT, 20_000 - LINES_IN_WINDOW, WINDOW_S)
    assert took_s < 0.1
    journal.repeats.roll_over()
    assert len(journal.lines("lines suppressed")) == 1


def test_every_event_has_its_own_count_and_starts_anew_with_the_window(journal: Journal) -> None:
    log = structlog.get_logger("sidecar")
    for _ in range(LINES_IN_WINDOW + 5):
        log.warning("one")
        log.info("other")
    assert (len(journal.lines("one")), len(journal.lines("other"))) == (LINES_IN_WINDOW, LINES_IN_WINDOW)

    journal.repeats.roll_over()
    log.warning("one")
    assert len(journal.lines("one")) == LINES_IN_WINDOW + 1
    assert {line["of"]: line["count"] for line in journal.lines("lines suppressed")} == {"one": 5, "other": 5}
    assert journal.repeats.suppressed == 10


def test_at_debug_nothing_is_held_back(tmp_path: Path) -> None:
    """Whoever asks for it wants to see all of it."""
    journal = Journal(tmp_path / "log", level="debug")
    for _ in range(LINES_IN_WINDOW + 5):
        structlog.get_logger("sidecar").debug("received")

    assert len(journal.lines("received")) == LINES_IN_WINDOW + 5
    journal.close()


async def test_the_process_writes_the_line_and_a_storm_of_junk_does_not_flood(place: Path) -> None:
    with decode() as waiting:
        async with sidecar(place, "--admin", "off", "--settle-after-s", "0.05") as process:
            rank = await Rank.join(place)
            rank.opened(7)
            rank.handshake(7, waiting.endpoint, session="a-session-name")
            rank.failed(7)
            await waiting.told()
            for _ in range(3 * LINES_IN_WINDOW):
                bad = await Rank.connect(place)
                bad.say_raw(b"\0\0\0\1\xc1")
                await bad.hear_end()
                await bad.leave()
            await logged(process, EVENT)
            await rank.leave()
            process.terminate()
            _, rest = await process.communicate()
    lines = [json.loads(line) for line in rest.splitlines()]
    junk = "stream closed: malformed input"

    assert sum(line["event"] == junk for line in lines) <= LINES_IN_WINDOW
    assert [line["count"] for line in lines if line.get("of") == junk] == [2 * LINES_IN_WINDOW]
    assert b"a-session-name" not in rest
