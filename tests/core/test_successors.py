"""A sidecar is killed and another takes over: what its ranks say was handed off is believed in, as far as it may be."""

import pytest
from msgspec import structs

from sidecar.core.hand_offs import DELAY_S, SURELY_HELD
from sidecar.core.limits import OutboxLimits
from sidecar.core.owed import NoticeState
from sidecar.model import DecodeEndpoint, HandedOff, Hello
from tests.core.scene import E1, E2, Scene, hello, key

TRUST_S = OutboxLimits().trust_s
SETTLE_AFTER_S = OutboxLimits().settle_after_s


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


def words(scene: Scene) -> list[tuple[int, bool]]:
    """Rooms of which the rank was told that the hand-off stands, or does not."""
    replies = scene.replies[scene.streams["p"]]
    return [(reply.room, reply.stands) for reply in replies if isinstance(reply, HandedOff)]


def successor(*, alive: bool = True, session: str = "s") -> Scene:
    """Its rank says of room 1 that it was handed off."""
    scene = Scene()
    if not alive:
        scene.alive.clear()
    scene.join()
    scene.opened(1, 1)
    scene.handshake(1, 1, E1, session=session, handed_off=True)
    scene.failed(1, 1)
    return scene


# -- what a rank is told


def test_a_hand_off_is_told_a_moment_later(scene: Scene) -> None:
    shaken = scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S / 2)
    assert words(scene) == []

    scene.advance(DELAY_S / 2)
    assert scene.replies[1][-1] == HandedOff(1, 1, E1, shaken.seq)


def test_a_rank_of_an_older_plugin_is_not_told() -> None:
    older: Hello = structs.replace(hello(), hears_hand_offs=False)
    scene = Scene()
    scene.join(said=older)
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(1.0)

    assert words(scene) == []


def test_a_connection_that_broke_in_that_moment_is_no_hand_off(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.die(E1)
    scene.advance(1.0)

    assert words(scene) == []


def test_a_connection_that_came_back_in_that_moment_counts_from_there(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S / 2)
    scene.die(E1)
    scene.revive(E1)
    scene.advance(DELAY_S / 2)
    assert words(scene) == []

    scene.advance(DELAY_S / 2)
    assert words(scene) == [(1, True)]


def test_a_refusal_in_that_moment_casts_doubt(scene: Scene) -> None:
    """The peer may be frozen, and what it was sent still in our memory."""
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S / 2)
    scene.full.add(E1)
    scene.handshake(2, 2, E1)
    scene.failed(2, 2)
    scene.advance(DELAY_S)

    assert words(scene) == []


def test_more_than_surely_fits_into_the_kernel_casts_doubt(scene: Scene) -> None:
    for room in range(SURELY_HELD + 1):
        scene.handshake(room, 1, E1)
        scene.failed(room, 1)
    scene.handshake(SURELY_HELD + 1, 1, E2)
    scene.failed(SURELY_HELD + 1, 1)
    scene.advance(DELAY_S)

    assert words(scene) == [(SURELY_HELD + 1, True)]


def test_a_word_is_taken_back_when_the_connection_breaks(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S)
    scene.die(E1)

    assert words(scene) == [(1, True), (1, False)]


def test_what_was_taken_back_while_nobody_listened_is_said_again(scene: Scene) -> None:
    """Its rank would make a successor believe in a hand-off that is owed again."""
    scene.opened(1, 1)
    shaken = scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S)
    scene.leave()
    scene.die(E1)
    scene.join()
    scene.tell(structs.replace(shaken, handed_off=True))

    assert words(scene) == [(1, False)]


def test_a_hand_off_that_still_stands_is_not_contradicted(scene: Scene) -> None:
    scene.opened(1, 1)
    shaken = scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(DELAY_S)
    scene.join()
    scene.tell(structs.replace(shaken, handed_off=True))

    assert words(scene) == []


def test_what_has_ended_in_that_moment_is_not_told(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.aborted(1, 1, E1)
    scene.advance(DELAY_S)

    assert words(scene) == []


def test_the_word_is_kept_for_nobody_when_its_rank_has_left(scene: Scene) -> None:
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave()
    scene.advance(DELAY_S)
    scene.join()

    assert words(scene) == []


# -- what a successor does


def test_a_successor_connects_and_settles_without_telling_again() -> None:
    scene = successor()
    assert scene.open == {E1}
    scene.advance(SETTLE_AFTER_S)

    assert scene.told() == []
    assert scene.ended() == {"held_up": 1}
    assert [reply.room for reply in scene.settled()] == [1]


def test_a_connection_that_comes_up_in_time_is_evidence_enough() -> None:
    scene = successor(alive=False)
    scene.advance(TRUST_S / 2)
    scene.revive(E1)
    scene.advance(SETTLE_AFTER_S - 0.1)
    assert scene.ended() == {}

    scene.advance(0.1)
    assert (scene.told(), scene.ended()) == ([], {"held_up": 1})


def test_without_a_connection_in_time_it_is_owed_again() -> None:
    scene = successor(alive=False)
    owed = scene.notifier.outbox.find(key(1, 1, E1))
    assert owed is not None
    assert owed.state is NoticeState.TAKEN_OVER
    scene.advance(TRUST_S)

    assert words(scene) == [(1, False)]
    scene.revive(E1)
    assert scene.told() == [(E1, 1)]


def test_a_connection_that_breaks_again_makes_it_owed_again() -> None:
    scene = successor()
    scene.advance(1.0)
    scene.die(E1)
    scene.revive(E1)

    assert words(scene) == [(1, False)]
    assert scene.told() == [(E1, 1)]


def test_a_connection_that_was_there_before_counts_from_now() -> None:
    scene = Scene()
    scene.join()
    scene.handshake(2, 2, E1)
    scene.advance(1.0)
    scene.handshake(1, 1, E1, handed_off=True)
    scene.failed(1, 1)
    scene.advance(SETTLE_AFTER_S - 0.1)
    assert scene.ended() == {}

    scene.advance(0.1)
    assert (scene.told(), scene.ended()) == ([], {"held_up": 1})


def test_what_is_owed_afresh_beside_it_is_told() -> None:
    scene = successor()
    scene.handshake(2, 2, E1)
    scene.failed(2, 2)
    scene.advance(SETTLE_AFTER_S)

    assert scene.told() == [(E1, 2)]
    assert scene.ended() == {"held_up": 2}


def test_without_a_socket_for_it_it_is_owed_again_in_time() -> None:
    """The budget is spent on others."""
    scene = Scene(outbox=OutboxLimits(connections=1))
    scene.join()
    scene.alive.discard(E1)
    scene.handshake(2, 2, E2)
    scene.failed(2, 2)
    scene.handshake(1, 1, E1, handed_off=True)
    scene.failed(1, 1)
    assert E1 not in scene.open
    scene.advance(60.0)
    scene.revive(E1)
    scene.advance(60.0)

    assert sorted(scene.told()) == [(E1, 1), (E2, 2)]


def test_a_restarted_decode_is_owed_nothing_of_it() -> None:
    scene = successor(alive=False)
    scene.registered(E1, "new")
    scene.revive(E1)

    assert (scene.told(), scene.ended()) == ([], {"restarted": 1})


def test_a_handshake_that_is_news_is_answered() -> None:
    scene = successor(alive=False)
    scene.handshake(1, 1, E1)
    scene.revive(E1)

    assert scene.told() == [(E1, 1)]


def test_a_newer_life_ends_it() -> None:
    """It has had its hand-off, so it may not be sent again."""
    scene = successor(alive=False)
    scene.opened(1, 2)
    scene.revive(E1)

    assert (scene.told(), scene.ended()) == ([], {"superseded": 1})


def test_decodes_own_abort_ends_it() -> None:
    scene = successor(alive=False)
    scene.aborted(1, 1, E1)

    assert scene.ended() == {"decode_aborted": 1}


def test_a_late_handshake_of_an_evicted_record_may_have_been_handed_off() -> None:
    scene = Scene()
    scene.join()
    scene.failed(1, 1)
    scene.handshake(1, 1, E1, handed_off=True)
    scene.advance(SETTLE_AFTER_S)

    assert (scene.told(), scene.ended()) == ([], {"held_up": 1})


def test_everything_is_tried_at_once_when_the_end_is_near() -> None:
    """Nothing taken over is pending, and shutdown waits for nothing of it."""
    scene = successor(alive=False)
    scene.notifier.begin_shutdown(scene.now)

    assert scene.notifier.is_idle


def test_repr_of_endpoints_counts_nothing_twice() -> None:
    scene = successor(alive=False)
    scene.handshake(1, 1, DecodeEndpoint("127.0.0.1", 7009))

    assert [len(queue) for queue in scene.notifier.outbox.queues()] == [1, 1]
