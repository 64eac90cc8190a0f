"""Outbox and Connections: attempts, back-off, and a budget of sockets."""

from collections import Counter

from sidecar.core.actions import CloseEndpoint, Connect, SendNotices
from sidecar.core.connections import CHANCE_S
from sidecar.core.keys import Outcome
from sidecar.core.turns import TURN
from tests.core.box import NOW, Box
from tests.core.scene import E1, E2, E3, key


def test_a_handshake_opens_the_connection_before_anything_is_owed() -> None:
    box = Box()
    box.outbox.expect(E1, "s", NOW)
    box.outbox.expect(E1, "s", NOW)

    assert box.outbox.take_actions() == [Connect(E1)]


def test_everything_pending_is_due_when_the_connection_comes_up() -> None:
    box = Box()
    for room in range(3):
        box.owe(room)
    box.outbox.take_actions()
    box.outbox.endpoint_up(E1, NOW + 0.001)

    assert [offer.life.room for offer in box.offers()] == [0, 1, 2]


def test_one_is_tried_when_nothing_says_whether_there_is_a_connection() -> None:
    """Guards against relying on the monitor alone: an event may be lost."""
    box = Box()
    box.owe(1)
    box.owe(2)
    box.outbox.take_actions()
    box.outbox.handle_timer(NOW + 0.02)
    offers = box.offers()

    assert [offer.life.room for offer in offers] == [1]

    box.hand_off(offers[0], now=NOW + 0.02)

    assert [offer.life.room for offer in box.offers()] == [2]


def test_refusals_back_off() -> None:
    box = Box()
    box.owe(1)
    box.outbox.take_actions()
    now, waits = NOW, []
    for _ in range(5):
        deadline = box.outbox.next_deadline()
        assert deadline is not None
        waits.append(round(deadline - now, 6))
        now = deadline
        box.outbox.handle_timer(now)
        for offer in box.offers():
            box.refuse(offer, now=now)

    assert waits == [0.02, 0.04, 0.08, 0.16, 0.32]
    assert box.stats.refusals == 5


def test_a_batch_refused_together_backs_off_once() -> None:
    box = Box()
    box.connect()
    for room in range(3):
        box.owe(room)
    for offer in box.offers():
        box.refuse(offer)

    assert box.outbox.queues()[0].refusals == 1
    assert box.outbox.next_deadline() == NOW + 0.02
    box.outbox.handle_timer(NOW + 0.02)

    assert [offer.life.room for offer in box.offers()] == [0, 1, 2]


def test_a_long_queue_goes_out_in_batches() -> None:
    box = Box()
    box.connect()
    for room in range(TURN + 5):
        box.owe(room)
    first = box.offers()
    for offer in first:
        box.hand_off(offer)

    assert len(first) == TURN
    assert len(box.offers()) == 5


def test_a_turn_is_shared_by_those_that_are_due() -> None:
    box = Box()
    for endpoint in (E1, E2):
        box.connect(endpoint)
    for room in range(TURN):
        box.owe(room, E1)
        box.owe(room, E2)

    assert Counter(offer.endpoint for offer in box.offers()) == {E1: TURN // 2, E2: TURN // 2}


def test_an_endpoint_without_anything_owed_is_closed_when_idle() -> None:
    box = Box(idle_close_s=600.0)
    box.connect()
    box.outbox.handle_timer(NOW + 599)
    box.outbox.expect(E1, "s", NOW + 599)
    box.outbox.handle_timer(NOW + 600)

    assert box.outbox.take_actions() == []
    box.outbox.handle_timer(NOW + 1199)

    assert box.outbox.take_actions() == [CloseEndpoint(E1)]
    assert box.outbox.queues() == []


def test_at_the_budget_an_idle_endpoint_makes_room() -> None:
    box = Box(connections=1)
    box.connect()
    box.owe(1, E2)

    assert box.outbox.take_actions() == [CloseEndpoint(E1), Connect(E2)]


def test_at_the_budget_one_without_a_peer_makes_room_and_waits_its_turn() -> None:
    box = Box(connections=1)
    box.owe(1, E1)
    box.outbox.take_actions()
    box.owe(2, E2, now=NOW + CHANCE_S)

    assert box.outbox.take_actions() == [CloseEndpoint(E1), Connect(E2)]
    box.outbox.endpoint_up(E1, NOW + CHANCE_S)  # a word that crossed the close
    box.outbox.handle_timer(NOW + 2 * CHANCE_S)

    assert Connect(E1) in box.outbox.take_actions()


def test_at_the_budget_one_that_connects_still_is_given_time() -> None:
    """Guards against a crowd of endpoints, each of which takes another's socket before that one is connected."""
    box = Box(connections=1)
    box.outbox.expect(E1, "s", NOW)
    box.outbox.take_actions()
    box.owe(2, E2, now=NOW + CHANCE_S / 2)

    assert box.outbox.take_actions() == []
    assert box.stats.connections_over_limit == 1


def test_at_the_budget_one_that_has_handed_off_without_a_word_of_its_peer_keeps_its_socket() -> None:
    box = Box(connections=1, settle_after_s=5.0)
    box.owe(1, E1)
    box.outbox.take_actions()
    box.outbox.handle_timer(NOW + 0.02)
    box.hand_off(now=NOW + 0.02)
    box.owe(2, E2, now=NOW + 2 * CHANCE_S)

    assert box.outbox.take_actions() == []


def test_a_hand_off_without_a_word_of_its_peer_is_owed_again_in_the_end() -> None:
    """That word may be lost; then nobody can know whether the notice is."""
    box = Box(settle_after_s=5.0)
    box.owe(1, E1)
    box.outbox.take_actions()
    box.outbox.handle_timer(NOW + 0.02)
    box.hand_off(now=NOW + 0.02)
    box.outbox.handle_timer(NOW + 5.1)
    box.outbox.handle_timer(NOW + 6.0)

    assert [offer.life.room for offer in box.offers()] == [1]
    assert box.ended() == []


def test_at_the_budget_with_all_busy_the_new_one_waits_and_is_counted() -> None:
    box = Box(connections=1)
    box.connect()
    box.owe(1)
    box.owe(2, E2)
    box.outbox.expect(E3, "s", NOW)

    assert box.stats.connections_over_limit == 2
    assert [queue.endpoint for queue in box.outbox.queues()] == [E1, E2]
    box.outbox.end(key(1, 1, E1), Outcome.DECODE_ABORTED, NOW)
    box.outbox.handle_timer(NOW + 0.1)

    assert box.outbox.take_actions() == [CloseEndpoint(E1), Connect(E2)]


def test_words_about_what_ended_meanwhile_do_no_harm() -> None:
    box = Box()
    box.connect()
    box.owe(1)
    box.owe(2)
    first, second = box.offers()
    box.outbox.end(first.key, Outcome.DECODE_ABORTED, NOW)
    box.outbox.end(second.key, Outcome.DECODE_ABORTED, NOW)
    box.owe(3)
    box.hand_off(first)
    box.refuse(second)
    box.outbox.attempted([(SendNotices(E3, [first]), 1)], NOW)
    box.outbox.endpoint_down(E3, NOW)
    box.outbox.endpoint_up(E3, NOW)

    assert box.stats.hand_offs == box.stats.refusals == 0
    box.outbox.handle_timer(NOW + 1)

    assert [offer.life.room for offer in box.offers()] == [3]


def test_a_socket_that_was_down_and_forgotten_to_be_tried_is_tried() -> None:
    """All that waited for the next try has ended while it was being made; what is owed next must not wait for ever."""
    box = Box()
    box.owe(1)
    box.outbox.take_actions()
    box.outbox.handle_timer(NOW + 0.02)
    [offer] = box.offers()
    box.outbox.end(offer.key, Outcome.DECODE_ABORTED, NOW + 0.02)
    box.owe(2)

    assert (box.outbox.next_deadline() or 0.0) < NOW + 1.0


def test_coming_up_twice_is_coming_up_once() -> None:
    box = Box()
    box.connect()
    box.outbox.endpoint_up(E1, NOW)

    assert box.stats.endpoint_ups == 1


def test_hurrying_tries_what_backs_off() -> None:
    box = Box()
    box.owe(1)
    box.outbox.take_actions()
    for _ in range(8):
        box.outbox.handle_timer(box.outbox.next_deadline() or 0.0)
        for offer in box.offers():
            box.refuse(offer, now=box.outbox.queues()[0].retry_at or NOW)
    box.outbox.expect(E2, "s", NOW)
    box.outbox.hurry(NOW + 3)

    assert [offer.endpoint for offer in box.offers()] == [E1]


def test_an_endpoint_that_gave_way_is_not_looked_at_when_its_time_comes() -> None:
    box = Box(connections=1)
    box.connect(E1)
    box.outbox.expect(E2, "s", NOW)
    assert [queue.endpoint for queue in box.outbox.queues()] == [E2]
    box.outbox.take_actions()

    box.outbox.handle_timer(NOW + 10_000)  # E1's idle time would be over

    assert box.stats.connections_closed["limit"] == 1
    assert box.stats.connections_closed["idle"] == 1


def test_a_dead_endpoint_costs_the_living_nothing() -> None:
    """Work follows what is due: a timer for one endpoint must not walk another one's queue."""
    box = Box()
    box.connect(E2)
    for room in range(5000):
        box.owe(room, E1)
    box.outbox.take_actions()
    box.owe(1, E2)

    assert [offer.endpoint for offer in box.offers()] == [E2]
    box.outbox.handle_timer(NOW + 0.02)

    assert [offer.endpoint for offer in box.offers()] == [E1]


def test_what_settles_at_nearly_the_same_time_is_looked_at_together() -> None:
    """Each look wakes the process."""
    box = Box(settle_after_s=5.0, settle_grain_s=0.5)
    for endpoint, at in ((E1, NOW + 0.1), (E2, NOW + 0.3)):
        box.connect(endpoint, at)
        box.owe(1, endpoint, now=at)
        box.hand_off(now=at)
    box.outbox.handle_timer(NOW + 1.0)  # what is said of hand-offs
    deadline = box.outbox.next_deadline()

    assert deadline == NOW + 5.5
    box.outbox.handle_timer(deadline)
    assert box.ended() == [(1, Outcome.HELD_UP), (1, Outcome.HELD_UP)]
