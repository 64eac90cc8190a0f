"""What a sidecar that knows nothing is told of rooms that were used more than once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_hooks import facts
from sglang_hooks.lives import RECORD_LIMIT, Life
from sglang_hooks.rank import Rank
from sidecar.model import DecodeEndpoint, DecodeHandshake, RoomConcluded, RoomOpened
from tests.sglang_hooks.doubles import ScriptedSidecar
from tests.sglang_hooks.test_emitter import wait_until

D1, D2 = DecodeEndpoint("10.0.0.7", 7_001), DecodeEndpoint("10.0.0.8", 7_001)
ROOM = 7


@pytest.fixture
def rank(make_rank: Callable[..., Rank]) -> Rank:
    """Its first life of the room has failed, and nobody has said that D1 and D2 were told."""
    rank = make_rank()
    life = rank.open(ROOM)
    for endpoint in (D1, D2):
        rank.meet(ROOM, endpoint, "s")
    rank.release(life, "Aborted")
    return rank


def replayed(rank: Rank) -> list[tuple[int, DecodeEndpoint]]:
    """Lives and endpoints of the handshakes."""
    said = facts.replay(rank.table, now=rank.clock())
    return sorted((fact.life, fact.endpoint) for fact in said if isinstance(fact, DecodeHandshake))


def test_whoever_has_not_been_told_is_told(rank: Rank) -> None:
    assert replayed(rank) == [(1, D1), (1, D2)]


def test_an_endpoint_of_the_rooms_new_life_is_not_told_of_the_old_one(rank: Rank) -> None:
    """The sidecar reads a long replay in pieces: it would send the old notice before it hears of the new life, and
    decode would fail the new request."""
    rank.open(ROOM)
    rank.meet(ROOM, D1, "s")

    assert replayed(rank) == [(1, D2), (2, D1)]


def test_nor_one_of_a_later_life_that_has_ended(rank: Rank) -> None:
    life = rank.open(ROOM)
    rank.meet(ROOM, D1, "s")
    rank.release(life, "Aborted")

    assert replayed(rank) == [(1, D2), (2, D1)]


def test_nor_one_that_came_early_for_the_next_one(rank: Rank) -> None:
    life = rank.open(ROOM)
    rank.succeeded(life)
    rank.release(life, "")
    rank.meet(ROOM, D1, "s")

    assert replayed(rank) == [(1, D2), (3, D1)]


def test_an_old_life_with_nobody_left_to_tell_is_left_out(rank: Rank) -> None:
    rank.open(ROOM)
    for endpoint in (D1, D2):
        rank.meet(ROOM, endpoint, "s")
    ends = [fact for fact in facts.replay(rank.table, now=rank.clock()) if isinstance(fact, RoomConcluded)]

    assert ends == []


@pytest.fixture
def owing(make_rank: Callable[..., Rank]) -> tuple[Rank, Life]:
    """Decode was gone: thousands of ended lives are still owed. And one that is open."""
    rank = make_rank(started=True)
    for room in range(RECORD_LIMIT):
        ended = rank.open(room)
        for port in range(4):
            rank.meet(room, DecodeEndpoint("10.0.0.9", 7_001 + port), "s")
        rank.release(ended, "Aborted")
    life = rank.open(RECORD_LIMIT)
    rank.meet(RECORD_LIMIT, D1, "s")
    return rank, life


def test_a_success_waits_for_a_long_replay_and_ends_no_stream(owing: tuple[Rank, Life], socket_path: Path) -> None:
    """Each success of normal traffic broke the stream, the replay began anew, and never came to its end."""
    rank, life = owing
    with ScriptedSidecar(socket_path) as sidecar:
        sidecar.meet()
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        reading = threading.Timer(0.1, sidecar.read_on)
        reading.start()
        rank.succeeded(life)
        reading.join()
        told = [fact for fact in sidecar.hear(6 * RECORD_LIMIT + 3) if getattr(fact, "room", None) == RECORD_LIMIT]

    assert [type(fact) for fact in told] == [RoomOpened, DecodeHandshake, RoomConcluded]
    assert rank.emitter.traffic.connects == 1


def test_the_scheduler_thread_does_not_wait_for_it(owing: tuple[Rank, Life], socket_path: Path) -> None:
    rank, life = owing
    with ScriptedSidecar(socket_path) as sidecar:
        sidecar.meet()
        sidecar._reads.clear()  # noqa: SLF001 - our own double
        wait_until(lambda: rank.emitter.traffic.connected, "never connected")
        rank.succeeded(life, may_wait=False)
        sidecar.read_on()

        sidecar.meet(2)
