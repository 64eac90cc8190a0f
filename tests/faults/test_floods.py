"""More of everything than there is place for: memory stays within bounds, and what is let go is counted.

docs/delivery.md has one row for each place.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from sidecar.model import (
    PROTOCOL,
    DecodeEndpoint,
    DecodeHandshake,
    Fact,
    Hello,
    RoomConcluded,
    RoomOpened,
    TerminalStatus,
)
from sidecar.wire.ingress import encode, encode_all
from tests.faults.actors import Actor, Stage
from tests.faults.ledger import LIMIT_S, Book, until

STORM, LONGER_STORM, LONGEST_STORM = 12_000, 30_000, 60_000
PER_ENDPOINT, OPEN_ROOMS = 8_192, 65_536
RANK_LIMIT_MB, SIDECAR_LIMIT_MB = 80.0, 100.0
"""What a storm may add to a process. Records, tombstones and notices have their place in it, and are no leak."""


class Grown:
    """How much memory a process takes more than at first."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._before_mb = actor.rss_mb()

    def mb(self) -> float:
        return round(self._actor.rss_mb() - self._before_mb, 1)


def test_facts_for_a_sidecar_that_does_not_read(stage: Stage, book: Book) -> None:
    """What is queued is taken when it reads again, and a new stream says what lives of the rest. What does not any
    more, because the storm has pushed its record out, is counted: nobody can tell it."""
    sidecar = stage.sidecar()
    decode, rank = stage.decode(16), stage.rank()
    grown = Grown(rank)
    with sidecar.stopped():
        rank.give_up(range(LONGER_STORM), decode)
        grown_mb = grown.mb()
        report = rank.do("report")
    until(lambda: rank.do("report")["stream"]["connects"] == 2, "no second stream")
    rank.says_all()
    until(lambda: not sidecar.metric("owed_pending"), "something waits")
    decode.read_all()
    losses = rank.do("report")["losses"]
    untold = len(stage.ledger.untold())

    assert report["stream"]["facts_dropped"] > 0
    assert sidecar.metric("facts_dropped_total") == report["stream"]["facts_dropped"]
    assert 0 < untold <= losses["owed_evicted"]
    assert grown_mb < RANK_LIMIT_MB
    book.enter(
        "flood: facts for a sidecar that does not read",
        stage.ledger.account(let_go=losses["owed_evicted"]),
        facts_dropped=report["stream"]["facts_dropped"],
        owed_evicted=losses["owed_evicted"],
        rank_grown_mb=grown_mb,
    )


def test_notices_for_an_endpoint_that_is_dead_or_frozen(stage: Stage, book: Book) -> None:
    """The oldest are let go. The buffers of libzmq and the kernel take what the frozen one is handed first."""
    sidecar = stage.sidecar()
    dead, frozen, living, rank = stage.decode(started=False), stage.decode(), stage.decode(4), stage.rank()
    rank.give_up(range(100), living)
    grown = Grown(sidecar)
    frozen.signal(signal.SIGSTOP)
    rank.give_up(range(STORM), dead)
    rank.says_all()  # or some would find no place in its own queue
    rank.give_up(range(STORM, 2 * STORM), frozen)
    rank.says_all()
    rank.give_up(range(2 * STORM, 2 * STORM + 400), living)
    stage.ledger.wait_for(notice for notice in stage.ledger.owed if notice[0] in living.ports)
    rank.says_all()
    until(lambda: sidecar.metric("notices_owed_total") == 2 * STORM + 500, "not all have come")
    owed, grown_mb = sidecar.metric("owed"), grown.mb()
    dead.start()
    frozen.signal(signal.SIGCONT)
    until(lambda: not sidecar.metric("owed_pending"), "what is kept is not told")
    for decode in (dead, frozen):
        decode.read_all()
    dropped = int(sidecar.metric("notices_ended_total", outcome="dropped"))

    assert owed <= 2 * PER_ENDPOINT + 500
    assert dropped >= 2 * (STORM - PER_ENDPOINT)
    assert grown_mb < SIDECAR_LIMIT_MB
    book.enter(
        "flood: notices for the dead and the frozen",
        stage.ledger.account(let_go=dropped),
        sidecar_grown_mb=grown_mb,
    )


def test_replies_for_a_rank_that_does_not_read(stage: Stage, book: Book) -> None:
    """What it can do without is not written to it, and its stream stays."""
    sidecar = stage.sidecar("--settle-after-s", "6")  # what is said when it settles is said to a stopped rank
    decode, rank = stage.decode(8), stage.rank()
    grown = Grown(sidecar)
    for first in range(0, LONGEST_STORM, STORM):  # all at once would find no place in the rank's own queue
        rank.give_up(range(first, first + STORM), decode)
        rank.says_all()
    with rank.stopped():
        stage.ledger.wait_for()
        sidecar.settles()
        grown_mb = grown.mb()
        spared = int(sidecar.metric("replies_spared_total"))
    rank.give_up(range(LONGEST_STORM, LONGEST_STORM + 100), decode)
    stage.ledger.wait_for()

    assert spared > 0
    assert rank.do("report")["stream"]["connects"] == 1
    assert grown_mb < SIDECAR_LIMIT_MB
    book.enter(
        "flood: replies for a rank that does not read",
        stage.ledger.account(),
        replies_spared=spared,
        sidecar_grown_mb=grown_mb,
    )


def test_rooms_that_are_opened_and_never_ended(stage: Stage, book: Book) -> None:
    """The oldest are forgotten: of those nobody is told if their rank dies."""
    sidecar = stage.sidecar()
    grown = Grown(sidecar)
    with raw_rank(stage.socket) as stream:
        stream.sendall(encode_all([RoomOpened(room, room, room) for room in range(1, 2 * OPEN_ROOMS + 1)]))
        until(lambda: sidecar.metric("facts_total", kind="RoomOpened") == 2 * OPEN_ROOMS, "not all have come")
        dropped = int(sidecar.metric("rooms_dropped_total", reason="limit"))
        grown_mb = grown.mb()

    assert sidecar.metric("rooms_open") <= OPEN_ROOMS
    assert dropped == OPEN_ROOMS
    assert grown_mb < SIDECAR_LIMIT_MB
    book.enter("flood: rooms opened", stage.ledger.account(), rooms_dropped=dropped, sidecar_grown_mb=grown_mb)


def test_endpoints_without_end(stage: Stage, book: Book) -> None:
    """Junk that reached a rank's port may name any. They find no socket, and are forgotten with their notices."""
    sidecar = stage.sidecar(preexec_fn=lambda: limit_own_descriptors(256))
    grown, count = Grown(sidecar), 4_000
    with raw_rank(stage.socket) as stream:
        for first in range(1, count, 1_000):
            stream.sendall(encode_all(failed_rooms(range(first, first + 1_000))))
        until(lambda: sidecar.metric("notices_owed_total") == count, "not all have come")
        over = int(sidecar.metric("connections_over_limit_total"))
        over += int(sidecar.metric("connections_closed_total", reason="limit"))
        grown_mb = grown.mb()

    assert over > 0
    assert sidecar.descriptors() < 256
    assert grown_mb < SIDECAR_LIMIT_MB
    book.enter("flood: endpoints", stage.ledger.account(), connections_over_limit=over, sidecar_grown_mb=grown_mb)


def raw_rank(path: Path) -> socket.socket:
    """A stream that has said hello, for what a rank of the plugin would not say so fast."""
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(LIMIT_S)
    stream.connect(str(path))
    said = Hello(PROTOCOL, "raw", "engine", "prefill", 0, 0, 0, 0, os.getpid(), "0", "mooncake", 300.0, {})
    stream.sendall(encode(said))
    return stream


def failed_rooms(rooms: Sequence[int]) -> list[Fact]:
    """Each with one endpoint of its own, on addresses that lead nowhere."""
    said: list[Fact] = []
    failed, now = TerminalStatus.FAILED, time.monotonic()
    for room in rooms:
        endpoint = DecodeEndpoint(f"127.{room % 250}.{room // 250 % 250}.{1 + room // 62_500}", 9)
        said.append(DecodeHandshake(2 * room, room, room, endpoint, "s"))
        said.append(RoomConcluded(2 * room + 1, room, room, failed, "gone", True, now))
    return said


def limit_own_descriptors(count: int) -> None:
    import resource  # noqa: PLC0415 - in the child, before it is a sidecar

    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
