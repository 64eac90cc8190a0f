"""What is said of a life, from what the life holds. Pure; `Rank` calls it with its lock held."""

from collections.abc import Iterator

from sglang_hooks.lives import Life, LifeTable
from sidecar.model import DecodeEndpoint, DecodeHandshake, Fact, RoomConcluded, RoomOpened, TerminalStatus


def opening_fact(life: Life) -> RoomOpened:
    return RoomOpened(life.opened_seq, life.room, life.number, life.traceparent)


def handshake_fact(life: Life, endpoint: DecodeEndpoint) -> DecodeHandshake:
    joined = life.endpoints[endpoint]
    handed_off = endpoint in life.handed_off
    return DecodeHandshake(joined.seq, life.room, life.number, endpoint, joined.session, handed_off)


def conclusion_fact(life: Life, status: TerminalStatus, *, at_s: float) -> RoomConcluded:
    """`at_s` is used while the life has no time of its own."""
    cause = "" if status is TerminalStatus.SUCCESS else life.cause
    return RoomConcluded(
        life.concluded_seq,
        life.room,
        life.number,
        status,
        cause,
        life.drained_in_time,
        life.concluded_at_s or at_s,
        life.ending_since_s,
        0 if status is TerminalStatus.SUCCESS else life.http_status,
    )


def replay(table: LifeTable, *, now: float) -> Iterator[Fact]:
    """Everything a sidecar that knows nothing must be told.

    With the numbers of the first time: a sidecar that does know takes a handshake with a higher one for a new request.
    """
    table.expire(now=now)
    for life in table.lives():
        if life.succeeded or (life.concluded and not life.owed and life.endpoints):
            continue
        yield opening_fact(life)
        yield from _handshakes(life)
        if life.concluded:
            yield conclusion_fact(life, TerminalStatus.FAILED, at_s=now)
    for life in table.early_lives(now=now):
        yield from _handshakes(life)


def _handshakes(life: Life) -> Iterator[Fact]:
    for endpoint in life.owed:
        yield handshake_fact(life, endpoint)
