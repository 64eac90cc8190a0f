"""Decode came before prefill's own request: nobody is told unless the rank dies, and it does not stay for ever."""

from sidecar.core.keys import LifeKey
from tests.core.scene import E1, E2, TTL_S, Scene

GRACE_S = 0.1


def joined() -> Scene:
    scene = Scene()
    scene.join()
    return scene


def test_an_early_handshake_is_never_answered_by_itself() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.advance(TTL_S * 2)

    assert scene.told() == []


def test_the_death_of_the_rank_is_told_to_it() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.leave()
    scene.process_dies()
    scene.advance(GRACE_S)

    assert scene.told() == [(E1, 1)]


def test_one_that_gave_up_early_is_not_told_of_the_death() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.handshake(1, 1, E2)
    scene.aborted(1, 1, E1)
    scene.leave()
    scene.process_dies()
    scene.advance(GRACE_S)

    assert scene.told() == [(E2, 1)]


def test_a_life_that_nobody_opens_is_forgotten_after_the_ttl_and_counted() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.advance(TTL_S - 1)
    scene.handshake(1, 1, E2)
    assert scene.notifier.rooms.open_rooms == 1

    scene.advance(1)
    assert scene.notifier.rooms.open_rooms == 0
    assert scene.notifier.stats.open_rooms_dropped["early"] == 1


def test_an_opened_life_stays() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.opened(1, 1)
    scene.advance(TTL_S * 2)
    scene.failed(1, 1)

    assert scene.told() == [(E1, 1)]


def test_an_early_life_that_ends_without_being_opened_is_a_record_like_any_other() -> None:
    """A rank's opening may be lost with an overflowing queue; its conclusion comes on the next stream."""
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.advance(TTL_S / 2)
    scene.failed(1, 1)
    scene.advance(TTL_S / 2)

    assert scene.notifier.rooms.records == 1
    assert scene.told() == [(E1, 1)]


def test_opening_an_early_life_ends_what_older_ones_still_owe() -> None:
    """As if the life had been opened first."""
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.handshake(1, 2, E2)
    assert scene.ended() == {}

    scene.opened(1, 2)
    assert scene.ended() == {"superseded": 1}


def test_an_early_life_of_a_rank_that_comes_back_is_what_it_says_then() -> None:
    scene = joined()
    said = scene.handshake(1, 1, E1)
    scene.advance(TTL_S - 1)
    scene.leave()
    scene.join()
    scene.tell(said)
    scene.advance(TTL_S - 1)

    assert scene.notifier.rooms.find(LifeKey("p", 1, 1)) is not None
    scene.advance(1)
    assert scene.notifier.rooms.find(LifeKey("p", 1, 1)) is None


def test_the_next_deadline_is_the_earlier_of_record_and_early_life() -> None:
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.advance(10)
    scene.failed(2, 2)
    rooms = scene.notifier.rooms
    first = rooms.next_deadline()
    scene.opened(1, 1)
    second = rooms.next_deadline()

    assert first is not None
    assert second == first + 10


# -- ends that are no alarm


def test_a_stream_that_ends_with_nothing_open_is_no_loss() -> None:
    """sglang drains a server and then kills it."""
    scene = joined()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave()
    scene.process_dies()
    stats = scene.notifier.stats

    assert (stats.ranks_left, stats.ranks_lost, stats.ranks_died) == (1, 0, 0)


def test_a_stream_that_ends_with_rooms_open_is_a_loss() -> None:
    scene = joined()
    scene.opened(1, 1)
    scene.leave()
    scene.process_dies()
    stats = scene.notifier.stats

    assert (stats.ranks_left, stats.ranks_lost, stats.ranks_died) == (1, 1, 1)
