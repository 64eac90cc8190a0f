"""The one door of the core: facts and outcomes in, actions and one deadline out. It composes; the rules are in the
parts.

Feed it (`receive`, `stream_closed`, `handed_off`, `refused`, `endpoint_up`, `endpoint_down`, `handle_timer`), then
collect `take_actions` until it is empty, then arm a timer for `next_deadline`.
"""

from collections.abc import Callable
from typing import assert_never

from sidecar.core.acks import Acknowledgements
from sidecar.core.actions import (
    Action,
    CloseStream,
    LifeKey,
    NoticeKey,
    Outcome,
    RankJoined,
    RankLeft,
    Retire,
    SendReply,
)
from sidecar.core.admission import implausible, unwelcome
from sidecar.core.backoff import RetrySchedule
from sidecar.core.endpoint_queue import OwedNotice
from sidecar.core.lifeline import DEATH_CAUSE, Lifeline
from sidecar.core.limits import Limits
from sidecar.core.outbox import Outbox
from sidecar.core.ranks import Rank, RankTable
from sidecar.core.room import Claim, Owe, Reaffirm, Room, Settle
from sidecar.core.rooms import RoomTable
from sidecar.core.stats import Stats
from sidecar.model import (
    PROTOCOL,
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Goodbye,
    Hello,
    Notice,
    Refusal,
    RoomConcluded,
    RoomOpened,
    Settled,
    TerminalStatus,
    Upward,
    Welcome,
)


class Notifier:
    """`rooms`, `outbox`, `ranks` and `stats` are there to be read by metrics and status. Only this class feeds them."""

    def __init__(self, *, epoch: str, limits: Limits, jitter: Callable[[], float], now: float) -> None:
        self.stats = Stats()
        self.epoch = epoch
        self._limits = limits
        self.rooms = RoomTable(limits=limits.rooms, stats=self.stats)
        schedule = RetrySchedule(first_s=limits.retry_first_s, cap_s=limits.retry_cap_s, jitter=jitter)
        self.outbox = Outbox(limits=limits.outbox, schedule=schedule, stats=self.stats)
        self.ranks = RankTable()
        self.lifeline = Lifeline(grace_s=limits.death_grace_s, is_held=self._is_held)
        self._actions: list[Action] = []
        self._quiet_since: float | None = now
        self._acks = Acknowledgements(delay_s=limits.ack_delay_s)
        self._is_ending = False

    def __repr__(self) -> str:
        return f"<Notifier {self.ranks!r} {self.rooms!r} {self.outbox!r}>"

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be handed off. Something handed off may still be unsettled."""
        return self.outbox.pending == 0

    def change_limits(self, limits: Limits) -> None:
        """Of a running sidecar. Retry curve, graces and backends stay as they are."""
        self._limits = limits
        self.rooms.change_limits(limits.rooms)
        self.outbox.change_limits(limits.outbox)

    def lives_of(self, room: int) -> list[Room]:
        """At every rank known here."""
        return [life for rank in self.ranks.known for life in self.rooms.lives_of(rank.hello.process, room)]

    # -- streams

    def receive(self, stream: int, message: Upward, now: float) -> None:
        if isinstance(message, Hello):
            self._hello(stream, message, now)
            return
        rank = self.ranks.on(stream)
        if rank is None:
            self._refuse(stream, "no_hello", "the first message of a stream is a hello")
            return
        self.stats.facts[type(message).__name__] += 1
        is_replay = rank.accept(message.seq)
        self._acks.owe(now)
        self.stats.facts_replayed += is_replay
        if implausible(message):
            self.stats.facts_implausible += 1
            return
        self._apply(rank, message, is_replay, now)
        self._tell_orphans(now)
        self._settle_ended()

    def stream_closed(self, stream: int, now: float) -> None:
        """Open rooms of a rank that did not say goodbye stay: it comes back and replays them, or `process_died`
        follows."""
        rank = self.ranks.leave(stream)
        if rank is None:
            return
        in_order = rank.has_said_goodbye or self._is_ending
        open_rooms = len(self.rooms.open_of(rank.hello.process))
        self.stats.ranks_left += 1
        self.stats.ranks_lost += not in_order and open_rooms > 0
        if in_order:
            self.stats.open_rooms_dropped["left"] += self.rooms.forget_open(rank.hello.process)
        self._actions.append(RankLeft(rank.hello.process, rank.hello.pid, in_order, open_rooms))
        self._tell_orphans(now)
        self._note_quiet(now)

    def process_died(self, stream: int, now: float) -> None:
        """The process whose stream has ended is dead: decode is told of all that was open there."""
        rank = self.ranks.die(stream)
        if rank is None:
            return
        orphans = self.rooms.open_of(rank.hello.process)
        self.stats.ranks_died += bool(orphans)
        for key in orphans:
            self.stats.rooms_orphaned += 1
            self.lifeline.orphan(key, now)
        self._tell_orphans(now)
        self._note_quiet(now)

    # -- attempts and connections

    def handed_off(self, key: NoticeKey, now: float) -> None:
        self.outbox.handed_off(key, now)
        self._settle_ended()

    def refused(self, key: NoticeKey, now: float) -> None:
        self.outbox.refused(key, now)

    def endpoint_up(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.outbox.endpoint_up(endpoint, now)

    def endpoint_down(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.outbox.endpoint_down(endpoint, now)

    # -- time and output

    def handle_timer(self, now: float) -> None:
        self._acks.handle_timer(now)
        self.outbox.handle_timer(now)
        self._tell_orphans(now)
        self._settle_ended()
        self.rooms.handle_timer(now)
        self._note_quiet(now)
        retire_at = self._retire_at()
        if retire_at is not None and retire_at <= now:
            self._is_ending = True
            self._actions.append(Retire())

    def begin_shutdown(self, now: float) -> None:
        self._is_ending = True
        self.outbox.hurry(now)

    def next_deadline(self) -> float | None:
        parts = (self.rooms, self.outbox, self.lifeline, self._acks)
        times = (*(part.next_deadline() for part in parts), self._retire_at())
        return min((at for at in times if at is not None), default=None)

    def take_actions(self) -> list[Action]:
        """Decode's side first: replies to ranks are in no hurry, and each one wakes a process that wants the CPU."""
        actions: list[Action] = [*self.outbox.take_actions(), *self._actions]
        self._actions = []
        return actions + self._acks.take_actions(self.ranks.connected)

    def take_finished(self) -> list[Room]:
        """Lives to be reported: they ended without success, and nothing is owed for them any more."""
        return self.rooms.take_finished()

    # -- inside

    def _hello(self, stream: int, hello: Hello, now: float) -> None:
        if self.ranks.on(stream) is not None:
            self._refuse(stream, "second_hello", "a stream says hello once")
            self.stream_closed(stream, now)
            return
        reason = unwelcome(hello)
        if reason is not None:
            kind = "protocol" if hello.protocol != PROTOCOL else "implausible_hello"
            self._refuse(stream, kind, reason)
            return
        known = self.ranks.of(hello.process)
        is_back = known is not None
        self.stats.facts_dropped += max(0, hello.facts_dropped - (known.hello.facts_dropped if known else 0))
        _, replaced = self.ranks.join(hello, stream)
        if replaced is not None:
            self._refuse(replaced, "replaced", "the same process said hello on a newer stream")
        self.rooms.forget_open(hello.process)  # those that live come again in the replay that follows
        for surplus in self.ranks.forget_surplus():
            self.stats.ranks_forgotten += 1
            self.rooms.forget_open(surplus.hello.process)
        self.stats.ranks_joined += 1
        self._quiet_since = None
        self._actions += [SendReply(stream, Welcome(PROTOCOL, self.epoch)), RankJoined(hello, is_back)]

    def _refuse(self, stream: int, kind: str, reason: str) -> None:
        self.stats.refused_streams[kind] += 1
        self._actions += [SendReply(stream, Refusal(reason)), CloseStream(stream)]

    def _apply(self, rank: Rank, fact: Fact, is_replay: bool, now: float) -> None:
        process = rank.hello.process
        match fact:
            case RoomOpened(room=room, life=life):
                self._opened(LifeKey(process, room, life), is_replay, now)
            case DecodeHandshake(room=room, life=life):
                self._handshake(rank, LifeKey(process, room, life), fact, is_replay, now)
            case RoomConcluded(room=room, life=life):
                key = LifeKey(process, room, life)
                claims = self.rooms.concluded(key, fact, ttl_s=rank.hello.record_ttl_s, now=now)
                self._perform(rank, key, claims, now)
                self.rooms.note_concluded(key)
            case DecodeAborted(room=room, life=life, endpoint=endpoint):
                key = LifeKey(process, room, life)
                self.outbox.void_older(key, endpoint, Outcome.DECODE_ABORTED, now)
                self._perform(rank, key, self.rooms.aborted(key, endpoint, fact.seq, now), now)
            case DecodeAcknowledged(room=room, life=life, endpoint=endpoint):
                key = LifeKey(process, room, life)
                self._perform(rank, key, self.rooms.acknowledged(key, endpoint, fact.seq), now)
            case DecodeRegistered():
                self._registered(rank, fact, now)
            case Goodbye():
                rank.has_said_goodbye = True
            case _:
                assert_never(fact)

    def _opened(self, key: LifeKey, is_replay: bool, now: float) -> None:
        if self.rooms.opened(key, now) and not is_replay:
            self.outbox.open_newer_life(key, now)

    def _registered(self, rank: Rank, fact: DecodeRegistered, now: float) -> None:
        if rank.registered(fact.endpoint, fact.session, fact.seq):
            self.outbox.restarted(rank.hello.process, fact.endpoint, fact.session, now)

    def _handshake(self, rank: Rank, key: LifeKey, fact: DecodeHandshake, is_replay: bool, now: float) -> None:
        self.outbox.void_older(key, fact.endpoint, Outcome.SUPERSEDED, now)
        claims = self.rooms.handshake(key, fact, is_replay=is_replay, ttl_s=rank.hello.record_ttl_s, now=now)
        if rank.hello.backend.lower() in self._limits.backends:
            self.outbox.expect(fact.endpoint, now)
        self._perform(rank, key, claims, now)

    def _perform(self, rank: Rank, key: LifeKey, claims: list[Claim], now: float) -> None:
        for claim in claims:
            match claim:
                case Owe():
                    self._owe(rank, key, claim, now)
                case Settle(endpoint=endpoint, outcome=outcome):
                    self.outbox.end(NoticeKey(key, endpoint), outcome, now)
                case Reaffirm(endpoint=endpoint):
                    self._reply_settled(NoticeKey(key, endpoint))
                case _:
                    assert_never(claim)

    def _owe(self, rank: Rank, key: LifeKey, claim: Owe, now: float) -> None:
        if rank.has_restarted(claim.endpoint, claim.session, claim.seq):
            self.stats.notices_suppressed["restarted"] += 1
            self.rooms.settled(key, claim.endpoint)
            return
        if rank.hello.backend.lower() not in self._limits.backends:
            self.stats.notices_suppressed["wire"] += 1
            return
        end = self.rooms.end_of(key, now)
        self.stats.handshakes_late += claim.is_news
        owed = OwedNotice(
            key=NoticeKey(key, claim.endpoint),
            notice=Notice(key.room, rank.hello.prefill_rank, end.cause, rank.hello.backend.lower()),
            session=claim.session,
            owed_since=now if claim.is_news else end.owed_since,
            expires_at=end.expires_at,
            is_once=end.has_newer_life,
        )
        if self.outbox.owe(owed, is_news=claim.is_news, now=now):
            self.rooms.note_owed(key)

    def _is_held(self, key: LifeKey) -> bool:
        dead = self.ranks.of(key.process)
        siblings = (rank for rank in self.ranks.known if not rank.is_dead and rank.hello.process != key.process)
        return dead is not None and any(
            rank.hello.engine == dead.hello.engine and self.rooms.has_open(rank.hello.process, key.room)
            for rank in siblings
        )

    def _tell_orphans(self, now: float) -> None:
        if not len(self.lifeline):
            return
        for key in self.lifeline.take_due(now):
            rank = self.ranks.of(key.process)
            if rank is not None and self.rooms.has_open(key.process, key.room):
                end = RoomConcluded(0, key.room, key.life, TerminalStatus.FAILED, DEATH_CAUSE, True, now)
                claims = self.rooms.concluded(key, end, ttl_s=rank.hello.record_ttl_s, now=now)
                self._perform(rank, key, claims, now)
                self.rooms.note_concluded(key)

    def _settle_ended(self) -> None:
        for ended in self.outbox.take_ended():
            self.rooms.note_ended(ended)
            if ended.is_settled:
                self._reply_settled(ended.key)

    def _reply_settled(self, key: NoticeKey) -> None:
        rank = self.ranks.of(key.life.process)
        if rank is not None and rank.stream is not None:
            message = Settled(key.life.room, key.life.life, key.endpoint)
            self._actions.append(SendReply(rank.stream, message))

    def _note_quiet(self, now: float) -> None:
        if self.ranks.connected or len(self.outbox) or len(self.lifeline):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now

    def _retire_at(self) -> float | None:
        if self._is_ending or not self._limits.idle_exit_s or self._quiet_since is None:
            return None
        return self._quiet_since + self._limits.idle_exit_s
