"""What a rank is told of many notices at once, in the form that it takes."""

from collections.abc import Callable, Iterator

from sidecar.core.owed import OwedNotice
from sidecar.model import Answered, HandedOff, HandedOffBatch, Hello, Reply, Settled, SettledBatch

BATCH_LIMIT = 200
"""Handshakes in one reply, which stays below the longest frame even if each endpoint has the longest name."""

Word = Callable[[Hello, list[OwedNotice]], list[Reply]]


def settled(hello: Hello, notices: list[OwedNotice]) -> list[Reply]:
    if hello.hears_batches:
        return [SettledBatch(batch) for batch in _batches(notices)]
    return [Settled(owed.life.room, owed.life.life, owed.endpoint, owed.seq) for owed in notices]


def still_handed_off(hello: Hello, notices: list[OwedNotice]) -> list[Reply]:
    return _handed_off(hello, notices, stands=True)


def no_more_handed_off(hello: Hello, notices: list[OwedNotice]) -> list[Reply]:
    return _handed_off(hello, notices, stands=False)


def _handed_off(hello: Hello, notices: list[OwedNotice], *, stands: bool) -> list[Reply]:
    if not hello.hears_hand_offs:
        return []
    if hello.hears_batches:
        return [HandedOffBatch(batch, stands) for batch in _batches(notices)]
    return [HandedOff(owed.life.room, owed.life.life, owed.endpoint, owed.seq, stands) for owed in notices]


def _batches(notices: list[OwedNotice]) -> Iterator[list[Answered]]:
    for start in range(0, len(notices), BATCH_LIMIT):
        batch = notices[start : start + BATCH_LIMIT]
        yield [((life := owed.life).room, life.life, owed.endpoint, owed.seq) for owed in batch]
