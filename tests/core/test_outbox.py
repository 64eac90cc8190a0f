"""Outbox: what is owed, its bounds, and the evidence that ends it."""

from itertools import chain

import pytest

from sidecar.core.actions import Connect, SendNotices
from sidecar.core.endpoint_queue import Connection
from sidecar.core.keys import Outcome
from sidecar.core.owed import NoticeState
from sidecar.model import DecodeEndpoint
from tests.core.box import NOW, Box
from tests.core.scene import E1, E2, E3, key


def test_owed_on_a_connection_that_is_up_is_offered_at_once() -> None:
    box = Box()
    box.connect()
    owed = box.owe(1)

    assert box.offers() == [owed]


def test_owed_without_a_connection_asks_for_one_and_waits() -> None:
    box = Box()
    box.owe(1)

    assert box.outbox.take_actions() == [Connect(E1)]
    assert box.outbox.next_deadline() == NOW + 0.02


def test_held_up_long_enough_settles() -> None:
    box = Box(settle_after_s=5.0)
    box.connect()
    box.owe(1)
    box.hand_off()
    box.outbox.handle_timer(NOW + 4.9)

    assert box.ended() == []
    assert box.outbox.next_deadline() == NOW + 5.0
    box.outbox.handle_timer(NOW + 5.0)

    assert box.ended() == [(1, Outcome.HELD_UP)]
    assert len(box.outbox) == 0


@pytest.mark.parametrize("rooms_of_e2", [10, 1], ids=["as many", "one"])
def test_what_settles_at_several_endpoints_at_once_ends_each_once(rooms_of_e2: int) -> None:
    """In turn where the endpoints have about as many, else one endpoint after the other."""
    box = Box(settle_after_s=5.0)
    owed = {E1: list(range(10)), E2: list(range(100, 100 + rooms_of_e2)), E3: [200]}
    for endpoint in owed:
        box.connect(endpoint)
    for endpoint, rooms in owed.items():
        for room in rooms:
            box.owe(room, endpoint)
    box.hand_off()
    box.outbox.handle_timer(NOW + 5.0)

    assert sorted(box.ended()) == [(room, Outcome.HELD_UP) for room in sorted(chain.from_iterable(owed.values()))]
    assert len(box.outbox) == 0


def test_what_was_handed_off_later_settles_later() -> None:
    box = Box(settle_after_s=5.0)
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(2)
    box.hand_off(now=NOW + 1)
    box.outbox.handle_timer(NOW + 5.5)
    assert box.ended() == [(1, Outcome.HELD_UP)]
    queue = box.outbox.queue_of(E1)
    assert queue is not None
    assert queue.take_held_up(5.0, NOW + 5.9) == []

    box.outbox.handle_timer(NOW + 6.0)
    assert box.ended() == [(2, Outcome.HELD_UP)]


def test_a_connection_lost_before_that_makes_it_pending_again() -> None:
    box = Box(settle_after_s=5.0)
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(2)
    box.outbox.endpoint_down(E1, NOW + 1)
    box.outbox.endpoint_up(E1, NOW + 2)

    assert [offer.life.room for offer in box.offers()] == [1, 2]
    assert box.ended() == []


def test_settling_counts_from_the_last_hand_off() -> None:
    box = Box(settle_after_s=5.0)
    box.connect()
    box.owe(1)
    box.hand_off()
    box.outbox.endpoint_down(E1, NOW + 4)
    box.outbox.endpoint_up(E1, NOW + 4.5)
    box.hand_off(now=NOW + 4.5)
    box.outbox.handle_timer(NOW + 5)

    assert box.ended() == []
    assert box.stats.hand_offs_again == 1


def test_nothing_settles_on_a_connection_that_takes_no_more() -> None:
    """The peer may be frozen and have read nothing; only time on a connection that takes what it is offered counts."""
    box = Box(settle_after_s=5.0)
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(2)
    box.refuse(now=NOW + 4)
    box.outbox.handle_timer(NOW + 5)
    assert box.ended() == []

    box.outbox.handle_timer(NOW + 9)
    assert len(box.ended()) == 1


def test_expiry_ends_whatever_state_it_is_in() -> None:
    box = Box()
    box.connect()
    box.owe(1, expires_at=NOW + 1)
    box.hand_off()
    box.owe(2, E2, expires_at=NOW + 1)
    box.outbox.handle_timer(NOW + 1)

    assert sorted(box.ended(), key=str) == [(1, Outcome.EXPIRED), (2, Outcome.EXPIRED)]


def test_owing_again_changes_nothing() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(1)

    assert box.offers() == []
    assert box.stats.notices_owed == 1


def test_news_of_something_handed_off_makes_it_pending() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(1, is_news=True, session="s2")

    assert [offer.life.room for offer in box.offers()] == [1]


def test_a_newer_life_ends_what_had_its_hand_off_and_spares_the_rest() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    box.hand_off()
    box.owe(1, E2)
    box.outbox.open_newer_life(key(1, 2, E1).life, NOW)

    assert box.ended() == [(1, Outcome.SUPERSEDED)]
    assert box.outbox.find(key(1, 1, E2))


def test_what_is_spared_is_handed_off_once_and_never_again() -> None:
    box = Box()
    box.owe(1)
    box.outbox.take_actions()
    box.outbox.open_newer_life(key(1, 2, E1).life, NOW)
    box.outbox.endpoint_up(E1, NOW)
    box.hand_off()

    assert box.ended() == [(1, Outcome.SUPERSEDED)]


def test_a_newer_life_of_another_room_is_no_matter() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    box.hand_off()
    box.outbox.open_newer_life(key(2, 2, E1).life, NOW)
    box.outbox.open_newer_life(key(1, 2, E1, "q").life, NOW)

    assert box.ended() == []


def test_speaking_of_a_newer_life_voids_only_that_endpoints_older_notices() -> None:
    box = Box()
    box.owe(1)
    box.owe(1, E2)
    box.outbox.void_older(key(1, 2, E1).life, E1, 1, Outcome.SUPERSEDED, NOW)
    assert box.outbox.find(key(1, 1, E1)), "it came to be owed later"

    box.outbox.void_older(key(1, 2, E1).life, E1, 2, Outcome.SUPERSEDED, NOW)
    assert box.outbox.find(key(1, 1, E1)) is None
    assert box.outbox.find(key(1, 1, E2))


def test_a_restart_ends_what_the_old_session_was_owed() -> None:
    box = Box()
    box.owe(1, session="old")
    box.owe(2, session="new")
    box.outbox.restarted("p", E1, "new", NOW)
    box.outbox.restarted("other", E1, "newest", NOW)
    box.outbox.restarted("p", E3, "new", NOW)

    assert box.ended() == [(1, Outcome.RESTARTED)]


def test_the_oldest_of_a_full_queue_is_dropped_and_counted() -> None:
    box = Box(notices_per_endpoint=2)
    for room in (1, 2, 3):
        box.owe(room)

    assert box.ended() == [(1, Outcome.DROPPED)]
    assert box.stats.notices_ended["dropped"] == 1


def test_the_oldest_of_all_is_dropped_at_the_total() -> None:
    box = Box(notices_total=2)
    for room, endpoint in ((1, E1), (2, E2), (3, E3)):
        box.owe(room, endpoint)

    assert box.ended() == [(1, Outcome.DROPPED)]


def test_a_bound_of_one_endpoint_is_no_bound_of_others() -> None:
    box = Box(notices_per_endpoint=2)
    for room, endpoint in ((1, E1), (2, E2), (3, E3), (4, E1)):
        box.owe(room, endpoint)

    assert box.ended() == []


def test_what_is_offered_is_not_offered_again_before_its_outcome() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    [first] = box.offers()
    box.owe(2)
    [second] = box.offers()

    assert (first.life.room, second.life.room) == (1, 2)


def test_attempts_at_several_endpoints_are_reported_together() -> None:
    """Each counts for its own; one that is not known any more counts for nobody."""
    box = Box()
    taken = {E1: 0, E2: 1, E3: 1}
    for endpoint in taken:
        box.connect(endpoint)
    owed = [box.owe(room, endpoint) for room, endpoint in enumerate(taken)]
    sends = [action for action in box.outbox.take_actions() if isinstance(action, SendNotices)]
    stranger = SendNotices(DecodeEndpoint("127.0.0.1", 1), [])
    box.outbox.attempted([(stranger, 0), *((send, taken[send.endpoint]) for send in sends)], NOW + 1)

    assert [one.state for one in owed] == [NoticeState.PENDING, NoticeState.HANDED_OFF, NoticeState.HANDED_OFF]
    assert (box.stats.hand_offs, box.stats.refusals) == (2, 1)
    assert box.stats.owed_to_hand_off.sum_s == 2.0


def test_news_of_something_still_pending_leaves_it_in_its_place() -> None:
    box = Box()
    box.owe(1)
    box.owe(2)
    box.owe(1, is_news=True, session="s2")
    box.outbox.take_actions()
    box.outbox.endpoint_up(E1, NOW)

    assert [offer.life.room for offer in box.offers()] == [1, 2]
    assert box.stats.notices_owed == 2


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_counted_and_reported(outcome: Outcome) -> None:
    box = Box()
    box.owe(1)
    box.outbox.end(key(1, 1, E1), outcome, NOW)
    box.outbox.end(key(1, 1, E1), outcome, NOW)

    assert [(ended.key, ended.outcome) for ended in box.outbox.take_ended()] == [(key(1, 1, E1), outcome)]
    assert box.stats.notices_ended == {outcome.value: 1}
    assert sum(box.stats.owed_to_settled.counts) == outcome.is_settled


def test_the_oldest_owed_is_known() -> None:
    box = Box()

    ages = [box.outbox.oldest_owed_since]
    for room in (1, 2):
        box.owe(room, now=NOW + room)
        ages.append(box.outbox.oldest_owed_since)

    assert ages == [None, NOW + 1, NOW + 1]
    assert box.outbox.pending == 2


def test_repr_shows_the_state() -> None:
    box = Box()
    box.owe(1)

    assert repr(box.outbox) == "<Outbox owed=1 endpoints=1>"
    assert repr(box.outbox.queues()[0]) == "<EndpointQueue 127.0.0.1:7001 down pending=1 handed_off=0>"
    assert box.outbox.queues()[0].connection is Connection.DOWN
