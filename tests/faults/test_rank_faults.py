"""What becomes of prefill's processes, and how many of them one sidecar bears."""

import signal
import time

from tests.faults.actors import Stage
from tests.faults.ledger import Book, until

TOLD_LIMIT_S = 10.0
"""The claim is 0.5 s (tests/shell/test_process.py measures it); this machine may be busy with engines."""

SETTLES_SOON = ("--settle-after-s", "0.5")


def test_scheduler_killed_with_the_tokenizer_alive(stage: Stage, book: Book) -> None:
    """All that was open at the dead rank is told, nothing of its success; the door goes on, and so does a rank that
    comes in the dead one's place, though it uses the same rooms."""
    sidecar = stage.sidecar(*SETTLES_SOON)
    decode, door, rank = stage.decode(2), stage.rank(number="door"), stage.rank()
    for room in range(1, 101):
        rank.do("open", room, decode.addresses)
    for room in range(51, 101):
        rank.do("succeed", room)
    stage.ledger.owe((port, room, 0) for port in decode.ports for room in range(1, 51))
    rank.kill()
    began = time.monotonic()
    stage.ledger.wait_for()
    took_s = time.monotonic() - began
    successor = stage.rank()
    for room in range(1, 101):
        successor.do("open", room, decode.addresses)
        successor.do("succeed", room)
    door.do("refuse", 500, "too long")
    successor.do("meet", 500, [decode.addresses[0]])
    stage.ledger.owe([(decode.ports[0], 500, 0)])
    stage.ledger.wait_for()
    sidecar.settles()

    assert took_s < TOLD_LIMIT_S
    assert door.do("report")["stream"]["connected"]
    book.enter("scheduler killed, tokenizer alive", stage.ledger.account(), told_after_s=round(took_s, 2))


def test_one_of_two_ranks_killed(stage: Stage, book: Book) -> None:
    """The other one may still write what both have open, so it is asked to end it, and its word comes first."""
    stage.sidecar(*SETTLES_SOON)
    decode = stage.decode(2)
    dying, other = stage.rank(number=0), stage.rank(number=1)
    for rank in (dying, other):
        for room in range(1, 51):
            rank.do("open", room, decode.addresses)
    stage.ledger.owe((port, room, number) for port in decode.ports for room in range(1, 51) for number in (0, 1))
    dying.kill()
    stage.ledger.wait_for()

    book.enter("one rank of two killed", stage.ledger.account())


def test_sigterm_with_notices_owed(stage: Stage, book: Book) -> None:
    """The pod ends: what its rank has given up is owed on, what was still open is told by its death."""
    sidecar = stage.sidecar()
    away, there, rank = stage.decode(2, started=False), stage.decode(2), stage.rank()
    rank.give_up(range(100), away)
    rank.do("open", 500, there.addresses)
    rank.owe(range(500, 501), there, each=2)
    rank.signal(signal.SIGTERM)
    rank.process.wait(60)
    until(lambda: sidecar.metric("owed") >= 100, "nothing is owed")
    away.start()
    stage.ledger.wait_for()
    sidecar.signal(signal.SIGTERM)

    assert sidecar.process.wait(60) == 0
    book.enter("prefill SIGTERMed with notices owed", stage.ledger.account())


def test_sidecar_sigtermed_with_notices_owed(stage: Stage, book: Book) -> None:
    """It says so by its exit code, and the rank's next sidecar tells them."""
    sidecar = stage.sidecar("--grace-s", "0.2")
    away, rank = stage.decode(2, started=False), stage.rank()
    rank.give_up(range(100), away)
    until(lambda: sidecar.metric("owed") == 100, "not all are owed")
    sidecar.signal(signal.SIGTERM)
    assert sidecar.process.wait(60) == 3
    away.start()
    stage.sidecar()
    stage.ledger.wait_for()

    book.enter("sidecar SIGTERMed with notices owed", stage.ledger.account(), exits_with=3)


STORM = 20_000
RECORDS = 4_096


def test_abort_storm(stage: Stage, book: Book) -> None:
    """More than the records hold: what is evicted is counted, and decode that comes late for one of those is told all
    the same, from its tombstone."""
    sidecar = stage.sidecar(*SETTLES_SOON)
    decode, rank = stage.decode(16), stage.rank()
    before_mb = sidecar.rss_mb()
    began = time.monotonic()
    rank.give_up(range(STORM), decode)
    took_s = time.monotonic() - began
    stage.ledger.wait_for()
    sidecar.settles()
    losses = rank.do("report")["losses"]
    evicted = sidecar.metric("records_evicted_early_total")
    late = stage.decode(1)
    rank.owe(range(0, STORM, 100), late)
    for room in range(0, STORM, 100):
        rank.do("meet", room, late.addresses)
    stage.ledger.wait_for()

    assert losses["records_evicted"] == STORM - RECORDS
    assert STORM - RECORDS <= evicted < STORM - RECORDS + RECORDS // 64  # the sidecar evicts some more at once
    assert losses["tombstones_evicted"] == sidecar.metric("tombstones_lost_total") == 0
    book.enter(
        "abort storm of 20,000 rooms",
        stage.ledger.account(),
        took_s=round(took_s, 2),
        evicted=int(evicted),
        late=STORM // 100,
        grown_mb=round(sidecar.rss_mb() - before_mb, 1),
    )


def test_sixteen_ranks_and_thirty_two_endpoints(stage: Stage, book: Book) -> None:
    """Every room at every rank, every endpoint told by every rank."""
    sidecar = stage.sidecar(*SETTLES_SOON)
    decode = stage.decode(32)
    ranks = [stage.rank(number=number, connected=False) for number in range(16)]
    rooms = range(1, 21)
    for rank in ranks:
        rank.connected().owe(rooms, decode, each=32)
        rank.begin("give_up", rooms.start, len(rooms), decode.addresses, 32, 0.0)
    for rank in ranks:
        rank.end()
    stage.ledger.wait_for()
    sidecar.settles()

    book.enter("16 ranks x 32 endpoints", stage.ledger.account())


def test_two_engines_at_one_sidecar(stage: Stage, book: Book) -> None:
    """The death of one is no news of the other, though both use the same rooms."""
    stage.sidecar(*SETTLES_SOON)
    ours, theirs = stage.decode(2), stage.decode(2)
    dying, living = stage.rank(engine="one"), stage.rank(engine="other")
    for room in range(1, 51):
        dying.do("open", room, ours.addresses)
        living.do("open", room, theirs.addresses)
    dying.owe(range(1, 51), ours, each=2)
    dying.kill()
    stage.ledger.wait_for()
    assert living.do("report")["counts"]["deaths_of_siblings"] == 0
    for room in range(1, 51):
        living.do("succeed", room)
    living.give_up(range(51, 101), theirs)
    stage.ledger.wait_for()

    book.enter("two engines at one sidecar", stage.ledger.account())
