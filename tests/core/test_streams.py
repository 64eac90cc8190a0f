"""Ranks come and go, and the sidecar ends."""

import msgspec
import pytest

from sidecar.core.actions import CloseStream, RankJoined, RankLeft, Retire
from sidecar.model import (
    PROTOCOL,
    Accepted,
    Goodbye,
    Refusal,
    RoomOpened,
    Welcome,
)
from tests.core.scene import E1, TTL_S, Scene, hello


@pytest.fixture
def scene() -> Scene:
    joined = Scene()
    joined.join()
    return joined


def test_a_hello_is_welcomed_with_the_epoch() -> None:
    scene = Scene()
    stream = scene.join()

    assert scene.replies[stream] == [Welcome(PROTOCOL, "first", hears_refusals=True, takes_parcels=True)]
    assert scene.others == [RankJoined(hello(), is_back=False)]


def test_a_rank_that_can_ring_is_given_a_doorbell() -> None:
    scene = Scene()
    scene.notifier.receive(1, [msgspec.structs.replace(hello(), rings=True)], scene.now)
    scene.pump()

    assert scene.replies[1] == [Welcome(PROTOCOL, "first", hears_refusals=True, takes_parcels=True, doorbell=True)]


def test_facts_are_acknowledged_once_for_each_batch(scene: Scene) -> None:
    for room in range(3):
        scene.notifier.receive(1, [RoomOpened(scene.seq(), room, 1)], scene.now)
    scene.pump()

    assert scene.replies[1] == [Welcome(PROTOCOL, "first", hears_refusals=True, takes_parcels=True), Accepted(3)]


def test_acknowledgements_wait_for_company() -> None:
    scene = Scene(ack_delay_s=0.5)
    stream = scene.join()
    scene.opened(1, 1)
    scene.advance(0.4)
    scene.opened(2, 1)
    assert scene.replies[stream][1:] == []

    scene.advance(0.1)

    assert scene.replies[stream][1:] == [Accepted(2)]


def test_an_acknowledgement_is_about_this_stream_only(scene: Scene) -> None:
    """After a reconnect nothing counts as held before the replay has brought it."""
    first = scene.opened(1, 1)
    scene.opened(2, 1)
    stream = scene.join()
    scene.tell(first)

    assert scene.replies[stream][1:] == [Accepted(1)]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (RoomOpened(1, 1, 1), "no_hello"),
        (msgspec.structs.replace(hello(), protocol=PROTOCOL + 1), "protocol"),
        (msgspec.structs.replace(hello(), process=""), "implausible_hello"),
    ],
)
def test_a_bad_first_word_is_refused(message: RoomOpened, kind: str) -> None:
    scene = Scene()
    scene.notifier.receive(7, [message], scene.now)
    scene.pump()

    assert isinstance(scene.replies[7][0], Refusal)
    assert scene.others == [CloseStream(7)]
    assert scene.notifier.stats.refused_streams == {kind: 1}


def test_a_second_hello_on_a_stream_ends_it(scene: Scene) -> None:
    scene.notifier.receive(1, [hello("q"), Goodbye(1)], scene.now)
    scene.pump()

    assert scene.notifier.ranks.hellos == []
    assert scene.notifier.stats.refused_streams == {"second_hello": 1, "no_hello": 1}


def test_a_process_that_says_hello_elsewhere_leaves_its_old_stream(scene: Scene) -> None:
    scene.join()
    scene.notifier.stream_closed(1, scene.now)

    assert CloseStream(1) in scene.others
    assert scene.notifier.ranks.hellos == [hello()]
    assert scene.notifier.stats.ranks_lost == 0


def test_nonsense_is_counted_acknowledged_and_dropped(scene: Scene) -> None:
    scene.tell(RoomOpened(1, -5, 1))

    assert scene.notifier.stats.facts_implausible == 1
    assert scene.notifier.rooms.open_rooms == 0
    assert scene.replies[1][-1] == Accepted(1)


def test_leaving_in_order_is_no_loss(scene: Scene) -> None:
    scene.opened(1, 1)
    scene.goodbye()
    scene.leave()

    assert scene.others[-1] == RankLeft("p", 1, in_order=True, open_rooms=1)
    assert scene.notifier.stats.ranks_lost == 0


def test_leaving_without_a_word_is_a_loss(scene: Scene) -> None:
    """Of the stream, not of the rank: its rooms stay until it is back or known to be dead."""
    scene.opened(1, 1)
    scene.leave()

    assert scene.others[-1] == RankLeft("p", 1, in_order=False, open_rooms=1)
    assert scene.notifier.stats.ranks_lost == 1
    assert scene.notifier.rooms.open_rooms == 1


def test_what_a_lost_rank_owed_is_still_told(scene: Scene) -> None:
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave()
    scene.revive(E1)
    scene.advance(5.0)

    assert scene.told() == [(E1, 1)]
    assert scene.ended() == {"held_up": 1}


def test_processes_long_gone_are_forgotten(scene: Scene) -> None:
    for number in range(1100):
        scene.join(f"x{number}")
        scene.leave(f"x{number}")

    assert len(scene.notifier.ranks) == 1024
    assert scene.notifier.stats.ranks_forgotten == 77
    assert scene.notifier.ranks.of("p") is not None


def test_a_stream_nobody_knows_may_close(scene: Scene) -> None:
    scene.notifier.stream_closed(99, scene.now)

    assert scene.notifier.ranks.hellos == [hello()]


def test_shutdown_tries_everything_and_says_when_nothing_waits(scene: Scene) -> None:
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.advance(60.0)

    was_idle = scene.notifier.is_idle
    scene.alive.add(E1)
    scene.up.add(E1)
    scene.notifier.begin_shutdown(scene.now)
    scene.pump()

    assert (was_idle, scene.notifier.is_idle) == (False, True)
    assert scene.told() == [(E1, 1)]


def test_ranks_that_are_sent_away_at_shutdown_are_not_lost(scene: Scene) -> None:
    scene.notifier.begin_shutdown(scene.now)
    scene.leave()

    assert scene.notifier.stats.ranks_lost == 0


def test_a_sidecar_nobody_needs_retires_once() -> None:
    scene = Scene(idle_exit_s=60.0)
    scene.advance(59.0)

    assert scene.others == []
    scene.advance(100.0)

    assert scene.others == [Retire()]


def test_it_stays_while_a_rank_is_connected() -> None:
    scene = Scene(idle_exit_s=60.0)
    scene.join()
    scene.advance(100.0)

    assert Retire() not in scene.others
    scene.leave()
    scene.advance(60.0)

    assert Retire() in scene.others


def test_it_stays_while_something_is_owed() -> None:
    scene = Scene(idle_exit_s=60.0)
    scene.join()
    scene.alive.clear()
    scene.handshake(1, 1, E1)
    scene.failed(1, 1)
    scene.leave()
    scene.advance(TTL_S - 1)

    assert Retire() not in scene.others
    scene.advance(62.0)

    assert Retire() in scene.others


def test_lives_of_a_room_at_every_rank(scene: Scene) -> None:
    scene.join("q")
    scene.opened(1, 1)
    scene.opened(1, 2)
    scene.opened(1, 1, "q")

    assert len(scene.notifier.lives_of(1)) == 3
    assert scene.notifier.lives_of(2) == []


def test_repr_shows_the_state(scene: Scene) -> None:
    parts = (scene.notifier.ranks, scene.notifier.rooms, scene.notifier.outbox)

    assert repr(scene.notifier) == f"<Notifier {parts[0]!r} {parts[1]!r} {parts[2]!r}>"
    assert repr(scene.notifier.ranks) == "<RankTable connected=1 known=1>"
    assert repr(scene.notifier.ranks.of("p")) == "<Rank p rank=0 stream=1 seq=-1>"


def test_what_a_rank_dropped_is_counted_once_however_often_it_comes_back() -> None:
    scene = Scene()
    for dropped in (0, 7, 7, 9):
        scene.join("p", said=msgspec.structs.replace(hello("p"), facts_dropped=dropped))
    scene.join("q", said=msgspec.structs.replace(hello("q"), facts_dropped=2))

    assert scene.notifier.stats.facts_dropped == 11
