"""What is said of a life, from what the life holds. Pure; `Rank` calls it with its lock held."""

from collections import Counter
from collections.abc import Iterator, Sequence

from sglang_hooks.lives import Life, LifeTable
from sidecar.model import DecodeEndpoint, DecodeHandshake, Fact, RoomConcluded, RoomOpened, TerminalStatus

_SUCCESS = TerminalStatus.SUCCESS


def opening_fact(life: Life) -> RoomOpened:
    return RoomOpened(life.opened_seq, life.room, life.number, life.traceparent)


def handshake_fact(life: Life, endpoint: DecodeEndpoint) -> DecodeHandshake:
    joined = life.endpoints[endpoint]
    return DecodeHandshake(joined.seq, life.room, life.number, endpoint, joined.session, joined.is_handed_off)


def conclusion_fact(life: Life, status: TerminalStatus, *, at_s: float) -> RoomConcluded:
    """`at_s` is used while the life has no time of its own."""
    is_success = status is _SUCCESS
    return RoomConcluded(
        life.concluded_seq,
        life.room,
        life.number,
        status,
        "" if is_success else life.cause,
        life.drained_in_time,
        life.concluded_at_s or at_s,
        life.ending_since_s,
        0 if is_success else life.http_status,
    )


def replay(table: LifeTable, *, now: float) -> Iterator[Fact]:
    """Everything a sidecar that knows nothing must be told.

    With the numbers of the first time: a sidecar that does know takes a handshake with a higher one for a new request.
    """
    table.expire(now=now)
    lives, early = table.lives(), table.early_lives(now=now)
    last = _last_lives([*lives, *early])
    for life in lives:
        owed = [endpoint for endpoint in life.owed if last.get((life.room, endpoint), life.number) == life.number]
        if life.succeeded or (life.concluded and not owed and life.endpoints):
            continue
        yield opening_fact(life)
        for endpoint in owed:
            yield handshake_fact(life, endpoint)
        if life.concluded:
            yield conclusion_fact(life, TerminalStatus.FAILED, at_s=now)
    for life in early:
        for endpoint in life.owed:
            yield handshake_fact(life, endpoint)


def _last_lives(lives: Sequence[Life]) -> dict[tuple[int, DecodeEndpoint], int]:
    """Of rooms used more than once: the last life that each endpoint takes part in. It would take a word about an
    older one for a word about that."""
    uses = Counter(life.room for life in lives)
    last: dict[tuple[int, DecodeEndpoint], int] = {}
    for life in lives:
        for endpoint in life.endpoints if uses[life.room] > 1 else ():
            last[life.room, endpoint] = max(life.number, last.get((life.room, endpoint), 0))
    return last
