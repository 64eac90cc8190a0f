"""What each fact of a rank changes: in the lives of its rooms, and in what decode endpoints are owed."""

from collections.abc import Callable
from typing import Any, assert_never

from sidecar.core.dialects import Dialects
from sidecar.core.keys import LifeKey, NoticeKey, Outcome, Untold
from sidecar.core.outbox import Outbox
from sidecar.core.owed import NoticeState, OwedNotice
from sidecar.core.ranks import Rank
from sidecar.core.room import BuriedEnd, Claim, Handshake, Owe, Reaffirm, Room, RoomState, Settle
from sidecar.core.rooms import RoomTable
from sidecar.core.stats import Stats
from sidecar.model import (
    DecodeAborted,
    DecodeAcknowledged,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Goodbye,
    Notice,
    RoomConcluded,
    RoomOpened,
)

_PENDING, _TAKEN_OVER = NoticeState.PENDING, NoticeState.TAKEN_OVER
_SUCCEEDED = RoomState.SUCCEEDED

OnReaffirm = Callable[[Rank, LifeKey, Reaffirm], None]
Rule = Callable[[Rank, list[Any], set[int], float], None]


class Intake:
    """`backends` are those whose status messages can be written. `on_reaffirm`: the rank asks about something settled.

    `rules` holds one rule for each kind of fact. It is called with a rank, facts of that kind that came together, the
    ids of those that are replays, and the time.
    """

    def __init__(
        self,
        *,
        rooms: RoomTable,
        outbox: Outbox,
        dialects: Dialects,
        stats: Stats,
        backends: frozenset[str],
        on_reaffirm: OnReaffirm,
    ) -> None:
        self._rooms = rooms
        self._outbox = outbox
        self._dialects = dialects
        self._stats = stats
        self._backends = backends
        self._on_reaffirm = on_reaffirm
        self.rules: dict[type[Fact], Rule] = {
            RoomOpened: self._opened,
            DecodeHandshake: self._shaken_hands,
            RoomConcluded: self.conclude,
            DecodeAborted: self._aborted,
            DecodeAcknowledged: self._acknowledged,
            DecodeRegistered: self._registered,
            Goodbye: self._said_goodbye,
        }

    def conclude(self, rank: Rank, facts: list[RoomConcluded], replayed: set[int], now: float) -> None:
        rooms, process, ttl_s = self._rooms, rank.hello.process, rank.hello.record_ttl_s
        for fact in facts:
            room = rooms.concluded(process, fact, ttl_s, now)
            if room is None:
                continue
            if room.state is not _SUCCEEDED and room.first is not None:
                self._tell_all(rank, room, now)
            if not room.owed:
                rooms.note_finished(room)

    def _opened(self, rank: Rank, facts: list[RoomOpened], replayed: set[int], now: float) -> None:
        process = rank.hello.process
        for fact in facts:
            key = LifeKey(process, fact.room, fact.life)
            if self._rooms.opened(key, now, traceparent=fact.traceparent) and id(fact) not in replayed:
                self._outbox.open_newer_life(key, now)

    def _shaken_hands(self, rank: Rank, facts: list[DecodeHandshake], replayed: set[int], now: float) -> None:
        process, ttl_s = rank.hello.process, rank.hello.record_ttl_s
        for fact in facts:
            key = LifeKey(process, fact.room, fact.life)
            endpoint = self._outbox.familiar(fact.endpoint)
            self._outbox.void_older(key, endpoint, fact.seq, Outcome.SUPERSEDED, now)
            claims = self._rooms.handshake(key, endpoint, fact, is_replay=id(fact) in replayed, ttl_s=ttl_s, now=now)
            if rank.backend in self._backends:
                self._outbox.expect(endpoint, fact.session, now)
            self._perform(rank, key, claims, now)

    def _aborted(self, rank: Rank, facts: list[DecodeAborted], replayed: set[int], now: float) -> None:
        for fact in facts:
            key = LifeKey(rank.hello.process, fact.room, fact.life)
            self._outbox.void_older(key, fact.endpoint, fact.seq, Outcome.DECODE_ABORTED, now)
            self._perform(rank, key, self._rooms.aborted(key, fact.endpoint, fact.seq, now), now)

    def _acknowledged(self, rank: Rank, facts: list[DecodeAcknowledged], replayed: set[int], now: float) -> None:
        for fact in facts:
            key = LifeKey(rank.hello.process, fact.room, fact.life)
            self._perform(rank, key, self._rooms.acknowledged(key, fact.endpoint, fact.seq), now)

    def _registered(self, rank: Rank, facts: list[DecodeRegistered], replayed: set[int], now: float) -> None:
        for fact in facts:
            if rank.registered(fact):
                self._outbox.restarted(rank.hello.process, fact.endpoint, fact.session, now)

    def _said_goodbye(self, rank: Rank, facts: list[Goodbye], replayed: set[int], now: float) -> None:
        rank.has_said_goodbye = True

    def _perform(self, rank: Rank, key: LifeKey, claims: list[Claim], now: float) -> None:
        for claim in claims:
            match claim:
                case Owe():
                    self._tell(rank, key, claim, now)
                case Settle():
                    self._outbox.end(NoticeKey(key, claim.endpoint), claim.outcome, now)
                case Reaffirm():
                    self._on_reaffirm(rank, key, claim)
                case _:
                    assert_never(claim)

    def _tell_all(self, rank: Rank, room: Room, now: float) -> None:
        """The life has failed: everyone who shook hands is owed a notice."""
        key = room.key
        notice = rank.notice_of(room)
        for shaken in room.handshakes:
            if shaken.is_settled:
                continue
            owed = self._owed_notice(rank, key, shaken, notice, room)
            if not isinstance(owed, OwedNotice):
                self._stats.notices_suppressed[owed.value] += 1
            elif self._outbox.owe(owed, is_news=False, now=now):
                room.note_owed()

    def _tell(self, rank: Rank, key: LifeKey, claim: Owe, now: float) -> None:
        """A handshake came after the end, or came again."""
        end = self._rooms.end_of(key, now)
        owed = self._owed_notice(rank, key, claim.shaken, rank.notice_of(end), end)
        if not isinstance(owed, OwedNotice):
            self._stats.notices_suppressed[owed.value] += claim.is_news
            return
        if claim.is_news:
            owed.owed_since = now
        self._stats.handshakes_late += claim.is_news
        if self._outbox.owe(owed, is_news=claim.is_news, now=now) and (room := self._rooms.find(key)):
            room.note_owed()

    def _owed_notice(
        self, rank: Rank, key: LifeKey, shaken: Handshake, notice: Notice, end: Room | BuriedEnd
    ) -> OwedNotice | Untold:
        endpoint, session, seq = shaken.endpoint, shaken.session, shaken.seq
        dialect = stranger = self._dialects.of_a_stranger(rank)
        if (registration := rank.registration_of(endpoint)) is not None:
            if registration.session == session:
                dialect = self._dialects.of_a_registration(rank, registration)
            elif registration.seq > seq:
                shaken.is_settled = True
                return Untold.RESTARTED
        if rank.backend not in self._backends:
            return Untold.WIRE
        if not (notice.drained or dialect.holds_pages):
            return Untold.UNDRAINED
        best, safe = dialect.form, stranger.form
        since, until, is_once = end.concluded_at_s, end.expires_at, end.has_newer_life
        state = _TAKEN_OVER if shaken.handed_off else _PENDING
        return OwedNotice(
            key, endpoint, seq, notice, session, since, until, is_once, best, safe, safe, state, shaken.handed_off
        )
