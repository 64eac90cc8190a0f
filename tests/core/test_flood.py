"""A flood of endpoints that find no place: what is known of them stays in proportion to what is owed."""

from sidecar.core.actions import Connect
from sidecar.core.backoff import RetrySchedule
from sidecar.core.keys import LifeKey
from sidecar.core.outbox import Outbox, OutboxLimits
from sidecar.core.owed import OwedNotice
from sidecar.core.stats import Stats
from sidecar.model import DecodeEndpoint, Notice

CONNECTIONS, NOTICES = 4, 64


def owe(outbox: Outbox, number: int, now: float) -> None:
    endpoint = DecodeEndpoint(f"10.0.{number // 250}.{number % 250}", 7001)
    notice = Notice(0, "gone")
    life = LifeKey("p", number, number)
    owed = OwedNotice(life, endpoint, number, notice, "s", owed_since=now, expires_at=now + 300.0, is_once=False)
    outbox.owe(owed, is_news=False, now=now)


def test_endpoints_without_a_socket_are_forgotten_with_their_last_notice() -> None:
    stats = Stats()
    schedule = RetrySchedule(first_s=0.02, cap_s=5.0, jitter=lambda: 0.5)
    limits = OutboxLimits(notices_total=NOTICES, connections=CONNECTIONS)
    outbox = Outbox(limits=limits, schedule=schedule, stats=stats)
    most = 0
    for number in range(20 * NOTICES):
        owe(outbox, number, number * 0.001)
        outbox.handle_timer(number * 0.001)
        most = max(most, len(outbox.queues()))

    assert len(outbox) == NOTICES
    assert most <= NOTICES + CONNECTIONS
    assert stats.notices_ended["dropped"] == 19 * NOTICES


def test_an_endpoint_with_a_socket_stays_for_its_idle_time() -> None:
    limits = OutboxLimits(connections=CONNECTIONS, idle_close_s=600.0)
    outbox = Outbox(limits=limits, schedule=RetrySchedule(first_s=0.02, cap_s=5.0, jitter=lambda: 0.5), stats=Stats())
    endpoint = DecodeEndpoint("10.0.0.1", 7001)
    outbox.expect(endpoint, "s", 0.0)
    assert outbox.take_actions() == [Connect(endpoint)]
    outbox.handle_timer(599.0)
    assert len(outbox.queues()) == 1
    outbox.handle_timer(600.0)

    assert outbox.queues() == []
