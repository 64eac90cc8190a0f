"""What a rank is told of many notices, in the form that it takes."""

import pytest
from msgspec import structs

from sidecar.core.keys import LifeKey
from sidecar.core.owed import OwedNotice
from sidecar.core.ranks import RANK_LIMIT
from sidecar.core.words import BATCH_LIMIT, no_more_handed_off, settled, still_handed_off
from sidecar.model import DecodeEndpoint, HandedOff, HandedOffBatch, Notice, Settled, SettledBatch
from sidecar.wire.ingress import FRAME_LIMIT_BYTES, encode
from tests.core.scene import E1, E2, Scene, hello

OLDER = structs.replace(hello(), hears_batches=False)
OLDEST = structs.replace(OLDER, hears_hand_offs=False)


def owed(room: int, endpoint: DecodeEndpoint = E1, seq: int = 9) -> OwedNotice:
    return OwedNotice(
        life=LifeKey("p", room, room + 1),
        endpoint=endpoint,
        seq=seq,
        notice=Notice(0, "gone"),
        session="s",
        owed_since=0.0,
        expires_at=1.0,
        is_once=False,
    )


def test_a_rank_is_told_of_many_in_one_reply() -> None:
    notices = [owed(1, E1, 7), owed(2, E2, 8)]

    assert settled(hello(), notices) == [SettledBatch([(1, 2, E1, 7), (2, 3, E2, 8)])]
    assert still_handed_off(hello(), notices) == [HandedOffBatch([(1, 2, E1, 7), (2, 3, E2, 8)], stands=True)]
    assert no_more_handed_off(hello(), notices[:1]) == [HandedOffBatch([(1, 2, E1, 7)], stands=False)]


def test_an_older_plugin_is_told_of_each() -> None:
    notices = [owed(1, E1, 7), owed(2, E2, 8)]

    assert settled(OLDER, notices) == [Settled(1, 2, E1, 7), Settled(2, 3, E2, 8)]
    assert still_handed_off(OLDER, notices[:1]) == [HandedOff(1, 2, E1, 7)]
    assert no_more_handed_off(OLDER, notices[1:]) == [HandedOff(2, 3, E2, 8, stands=False)]


def test_one_that_hears_no_hand_offs_is_told_none() -> None:
    assert still_handed_off(OLDEST, [owed(1)]) == []
    assert settled(OLDEST, [owed(1, seq=7)]) == [Settled(1, 2, E1, 7)]


@pytest.mark.parametrize("count", [0, 1, BATCH_LIMIT, BATCH_LIMIT + 1])
def test_no_reply_is_longer_than_a_frame(count: int) -> None:
    """Guards against a storm whose settling would break the stream."""
    longest = DecodeEndpoint("h" * 256, 65_535)
    replies = settled(hello(), [owed(2**62, longest, 2**62) for _ in range(count)])

    assert len(replies) == -(-count // BATCH_LIMIT)
    assert all(len(encode(reply)) < FRAME_LIMIT_BYTES for reply in replies)


def test_each_rank_hears_of_its_own_rooms_only() -> None:
    scene = Scene()
    scene.join("p")
    scene.join("q")
    for process in ("p", "q"):
        scene.handshake(1, 1, E1, process=process)
        scene.failed(1, 1, process=process)
    scene.advance(6.0)

    assert scene.settled("p") == [Settled(1, 1, E1)]
    assert scene.settled("q") == [Settled(1, 1, E1)]


def test_what_settles_at_many_endpoints_at_once_is_one_reply() -> None:
    """Guards against a write, and a wake-up of the rank, for each endpoint."""
    scene = Scene()
    scene.join("p")
    facts = [scene.handshake(room, 1, endpoint) for room, endpoint in ((1, E1), (2, E2))]
    for fact in facts:
        scene.failed(fact.room, 1)
    before = scene.reply_frames
    scene.advance(4.0)
    between = scene.reply_frames
    scene.advance(2.0)

    assert (between - before, scene.reply_frames - between) == (1, 1)


def test_what_settles_for_a_rank_that_is_forgotten_is_told_nobody() -> None:
    scene = Scene()
    scene.join("p")
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave("p")
    for number in range(RANK_LIMIT):
        scene.join(f"q{number}")
    scene.advance(6.0)

    assert scene.notifier.ranks.of("p") is None
    assert scene.ended() == {"held_up": 1}
