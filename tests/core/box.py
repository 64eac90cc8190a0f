"""An outbox without a shell, for the tests of its parts."""

from sidecar.core.actions import Connect, SendNotices
from sidecar.core.backoff import RetrySchedule
from sidecar.core.keys import LifeKey, Outcome
from sidecar.core.limits import OutboxLimits
from sidecar.core.outbox import Outbox
from sidecar.core.owed import OwedNotice
from sidecar.core.stats import Stats
from sidecar.model import DecodeEndpoint, Notice
from tests.core.scene import E1

NOW = 1000.0


class Box:
    """An outbox and what it did, without a shell."""

    def __init__(self, **limits: float) -> None:
        self.stats = Stats()
        schedule = RetrySchedule(first_s=0.02, cap_s=5.0, jitter=lambda: 1.0)
        self.outbox = Outbox(limits=OutboxLimits(**limits), schedule=schedule, stats=self.stats)  # type: ignore[arg-type]

    def owe(
        self,
        room: int,
        endpoint: DecodeEndpoint = E1,
        *,
        life: int = 1,
        expires_at: float = NOW + 300,
        now: float = NOW,
        is_news: bool = False,
        is_once: bool = False,
        session: str = "s",
    ) -> OwedNotice:
        owed = OwedNotice(
            life=LifeKey("p", room, life),
            endpoint=endpoint,
            seq=1,
            notice=Notice(0, "gone"),
            session=session,
            owed_since=now,
            expires_at=expires_at,
            is_once=is_once,
        )
        self.outbox.owe(owed, is_news=is_news, now=now)
        return owed

    def connect(self, endpoint: DecodeEndpoint = E1, now: float = NOW) -> None:
        self.outbox.expect(endpoint, "s", now)
        assert Connect(endpoint) in self.outbox.take_actions()
        self.outbox.endpoint_up(endpoint, now)

    def offers(self) -> list[OwedNotice]:
        batches = [action.offers for action in self.outbox.take_actions() if isinstance(action, SendNotices)]
        return [owed for batch in batches for owed in batch]

    def hand_off(self, *offers: OwedNotice, now: float = NOW) -> None:
        """As the shell answers a batch that was taken; without any given, whatever is offered now."""
        for owed in offers or self.offers():
            self.outbox.attempted([(SendNotices(owed.endpoint, [owed]), 1)], now)

    def refuse(self, *offers: OwedNotice, now: float = NOW) -> None:
        for owed in offers or self.offers():
            self.outbox.attempted([(SendNotices(owed.endpoint, [owed]), 0)], now)

    def ended(self) -> list[tuple[int, Outcome]]:
        return [(ended.key.life.room, ended.outcome) for ended in self.outbox.take_ended()]
