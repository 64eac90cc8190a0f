"""What becomes of the sidecar: its ranks never wait for it, and what they owe is told once it is back."""

import datetime
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.actors import Sidecar, Stage
from tests.faults.ledger import LIMIT_S, Book, until

LONG = bool(os.environ.get("PD_SIDECAR_LONG"))
STOPPED_S = 60.0 if LONG else 3.0
CALL_LIMIT_S = 2.0
"""Of one open, meet and release of a rank. It takes some 100 us; a machine busy with engines gives the core to others
for longer."""

SETTLES_SOON = ("--settle-after-s", "0.5")


def test_killed_again_and_again(stage: Stage, book: Book) -> None:
    """Amid aborts. How few are told twice after one kill is measured by tests/sglang_hooks/test_crash.py."""
    sidecar = stage.sidecar()
    decode, rank = stage.decode(4), stage.rank()
    for first in range(0, 1_500, 500):
        rank.owe(range(first, first + 500), decode)
        rank.begin("give_up", first, 500, decode.addresses, 1, 0.001)
        stage.ledger.wait_for((decode.ports[room % 4], room, 0) for room in range(first, first + 50))
        sidecar.kill()
        sidecar = stage.sidecar()
        rank.end()
    stage.ledger.wait_for()

    book.enter("sidecar killed three times amid aborts", stage.ledger.account())


def test_stopped(stage: Stage, book: Book) -> None:
    sidecar = stage.sidecar(*SETTLES_SOON)
    decode, rank = stage.decode(4), stage.rank()
    rank.give_up(range(100), decode)
    stage.ledger.wait_for()
    with sidecar.stopped():
        began = time.monotonic()
        longest_s = rank.give_up(range(100, 8_100), decode)
        longest_s = max(longest_s, rank.give_up(range(8_100, 8_200), decode, pause_s=STOPPED_S / 100))
        stopped_s = time.monotonic() - began
        report = rank.do("report")
    stage.ledger.wait_for()
    rank.hears_all_settled()

    assert longest_s < CALL_LIMIT_S
    book.enter(
        "sidecar stopped",
        stage.ledger.account(),
        stopped_s=round(stopped_s, 1),
        longest_call_ms=round(longest_s * 1000, 1),
        facts_dropped=report["stream"]["facts_dropped"],
    )


def test_absent_from_the_start(stage: Stage, book: Book) -> None:
    decode, rank = stage.decode(4), stage.rank(connected=False)
    longest_s = rank.give_up(range(2_000), decode)
    assert not stage.ledger.told
    stage.sidecar()
    stage.ledger.wait_for()

    assert longest_s < CALL_LIMIT_S
    book.enter("sidecar absent from the start", stage.ledger.account())


@pytest.mark.parametrize("log", ["stderr", "file"])
def test_disk_full(stage: Stage, book: Book, log: str) -> None:
    """Nothing can be written where its log goes, from the first line on."""
    with open("/dev/full", "w") as full:
        if log == "stderr":
            sidecar = stage.sidecar("--log-level", "debug", stderr=full)
        else:
            stage.socket.parent.mkdir(mode=0o700)
            flags = ("--log-level", "debug", "--log-file", str(stage.folder / "log"))
            sidecar = stage.sidecar(*flags, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    decode, rank = stage.decode(4), stage.rank()
    before_mb = sidecar.rss_mb()
    rank.give_up(range(1_000), decode)
    stage.ledger.wait_for()
    rank.kill()
    again = stage.rank()
    again.give_up(range(1_000, 1_100), decode)
    stage.ledger.wait_for()

    assert sidecar.rss_mb() - before_mb < 20
    book.enter(f"disk full under the sidecar's log ({log})", stage.ledger.account())


def test_socket_removed(stage: Stage, book: Book) -> None:
    """By a cleaner of /tmp, then its whole folder. Streams that are open go on; who comes later is served too, and no
    second sidecar gets the place."""
    sidecar = stage.sidecar()
    decode, first = stage.decode(4), stage.rank()
    stage.socket.unlink()
    first.give_up(range(100), decode)
    stage.ledger.wait_for()
    second = stage.rank(number=1)
    second.give_up(range(100, 200), decode)
    shutil.rmtree(stage.socket.parent)
    third = stage.rank(number=2)
    third.give_up(range(200, 300), decode)
    stage.ledger.wait_for()

    assert sidecar.process.poll() is None
    assert refusal_of_a_second(stage) == 4
    book.enter("sidecar's socket removed, then its folder", stage.ledger.account())


def test_descriptors_exhausted(stage: Stage, book: Book) -> None:
    """It may open nothing more for a while: what is open goes on, what cannot be opened is counted and tried again."""
    sidecar = stage.sidecar(stderr=subprocess.DEVNULL)
    decode, rank = stage.decode(4), stage.rank()
    rank.give_up(range(100), decode)
    stage.ledger.wait_for()
    before = sidecar.limit_descriptors(sidecar.descriptors())
    others, late = stage.decode(4), stage.rank(connected=False, number=1)
    rank.give_up(range(1_000, 1_100), decode)
    stage.ledger.wait_for()
    late.give_up(range(2_000, 2_100), decode)
    rank.give_up(range(3_000, 3_100), others)
    before_s = sidecar.cpu_s()
    time.sleep(1.0)  # whether it spins shows in this time
    spun_s = sidecar.cpu_s() - before_s
    sidecar.limit_descriptors(before)
    stage.ledger.wait_for()
    failures = sidecar.metric("push_failures_total", kind="open")

    assert failures > 0
    assert spun_s < 0.5
    book.enter("sidecar's descriptors exhausted", stage.ledger.account(), openings_failed=int(failures))


SHIFTED_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
static time_t step(void) { struct stat at; return stat(getenv("STEPPED"), &at) ? 0 : at.st_size ? -86400 : 86400; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += step();
    return said;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    int said = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000;
    return said;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


def test_clock_stepped(stage: Stage, book: Book) -> None:
    """A day forward, then a day back, under the sidecar and whatever libraries it has, while notices wait, settle and
    expire."""
    stepped = stage.folder / "stepped"
    env = {**os.environ, "LD_PRELOAD": str(shifted_clock(stage.folder)), "STEPPED": str(stepped)}
    sidecar = stage.sidecar(*SETTLES_SOON, env=env)
    living, returning, gone = stage.decode(4), stage.decode(4, started=False), stage.decode(4, started=False)
    patient, hasty = stage.rank(number=0), stage.rank(number=1, ttl_s=2.5)
    patient.give_up(range(100), returning)
    hasty.give_up(range(100), gone)
    for step, content in enumerate(("", "back")):
        stepped.write_text(content)
        assert abs(calendar_s(sidecar) - time.time()) > 80_000
        patient.give_up(range(1_000 * step + 1_000, 1_000 * step + 1_100), living)
        stage.ledger.wait_for(notice for notice in stage.ledger.owed if notice[0] in living.ports)
    until(lambda: sidecar.expired() == 100, "what nobody waits for any more does not expire")
    returning.start()
    stage.ledger.wait_for(notice for notice in stage.ledger.owed if notice[0] not in gone.ports)
    sidecar.settles()

    assert sidecar.metric("notices_ended_total", outcome="held_up") == 300
    book.enter("sidecar's clock stepped by a day", stage.ledger.account(expired=sidecar.expired()))


def calendar_s(sidecar: Sidecar) -> float:
    return datetime.datetime.fromisoformat(json.loads(sidecar.get("/v1/rooms/0"))["at"]).timestamp()


def shifted_clock(folder: Path) -> Path:
    """A library for LD_PRELOAD that steps the calendar's clock when the file $STEPPED is there."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIFTED_CLOCK)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("stepping the clock of one process takes a C compiler (cc)")
    return library


def test_two_at_one_socket(stage: Stage, book: Book) -> None:
    """The second refuses clearly and disturbs nothing."""
    stage.sidecar()
    decode, rank = stage.decode(4), stage.rank()
    rank.begin("give_up", 0, 400, decode.addresses, 1, 0.002)
    rank.owe(range(400), decode)
    assert refusal_of_a_second(stage) == 4
    rank.end()
    stage.ledger.wait_for()

    book.enter("two sidecars at one socket", stage.ledger.account(), second_exits_with=4)


def refusal_of_a_second(stage: Stage) -> int:
    command = [sys.executable, "-m", "sidecar", "run", "--socket", str(stage.socket), "--admin", "off"]
    second = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, text=True)
    assert f"another pd-sidecar serves {stage.socket}" in second.stderr
    return second.returncode
