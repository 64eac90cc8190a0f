"""The one door of the core: facts and outcomes in, actions and one deadline out. The rules are in the parts.

Feed it (`receive`, `stream_closed`, `attempted`, `parcels_attempted`, `endpoint_up`, `endpoint_down`, `handle_timer`),
then collect `take_actions` until it is empty, then arm a timer for `next_deadline`.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

from sidecar.core.acks import Acknowledgements
from sidecar.core.actions import (
    Action,
    Attempt,
    CloseStream,
    RankJoined,
    RankLeft,
    Retire,
    SendParcels,
    SendReplies,
)
from sidecar.core.admission import PLAUSIBLE, unwelcome
from sidecar.core.backoff import RetrySchedule
from sidecar.core.deadlines import earliest
from sidecar.core.dialects import Dialects
from sidecar.core.intake import Intake
from sidecar.core.keys import LifeKey
from sidecar.core.lifeline import DEATH_CAUSE, Lifeline
from sidecar.core.limits import Limits
from sidecar.core.outbox import Outbox
from sidecar.core.owed import OwedNotice
from sidecar.core.parcels import Parcels
from sidecar.core.ranks import Rank, RankTable
from sidecar.core.refusals import Refusals
from sidecar.core.room import Reaffirm, Room
from sidecar.core.rooms import RoomTable
from sidecar.core.stats import Stats
from sidecar.core.words import Word, no_more_handed_off, settled, still_handed_off
from sidecar.model import (
    PROTOCOL,
    TOKENIZER,
    DecodeEndpoint,
    Fact,
    Hello,
    ParcelGiven,
    Refusal,
    Reply,
    RoomConcluded,
    Settled,
    SiblingDied,
    TerminalStatus,
    Upward,
    Welcome,
)


class Notifier:
    """What is public is there to be read by metrics, status and story. Only this class feeds it."""

    def __init__(self, *, epoch: str, limits: Limits, jitter: Callable[[], float], now: float) -> None:
        self.stats = Stats()
        self.epoch = epoch
        self._limits = limits
        self.rooms = RoomTable(limits=limits.rooms, stats=self.stats)
        schedule = RetrySchedule(first_s=limits.retry_first_s, cap_s=limits.retry_cap_s, jitter=jitter)
        self.outbox = Outbox(limits=limits.outbox, schedule=schedule, stats=self.stats)
        self.parcels = Parcels(
            outbox=self.outbox,
            limits=limits.parcels,
            settle_after_s=limits.outbox.settle_after_s,
            schedule=schedule,
            stats=self.stats,
        )
        self.ranks = RankTable()
        self.dialects = Dialects(self.ranks, decode_sglang=limits.decode_sglang)
        self._intake = Intake(
            rooms=self.rooms,
            outbox=self.outbox,
            dialects=self.dialects,
            stats=self.stats,
            backends=limits.backends,
            on_reaffirm=self._reaffirm,
        )
        self.refusals = Refusals(ranks=self.ranks, replies_to=self._replies_to, stats=self.stats)
        self._rules = self._intake.rules | self.refusals.rules | {ParcelGiven: self.parcels.give}
        self.lifeline = Lifeline(grace_s=limits.death_grace_s, is_held=self._is_held)
        self._actions: list[Action] = []
        self._replies: dict[int, list[Reply]] = {}
        self._quiet_since: float | None = now
        self._acks = Acknowledgements(delay_s=limits.ack_delay_s)
        self._is_ending = False

    def __repr__(self) -> str:
        return f"<Notifier {self.ranks!r} {self.rooms!r} {self.outbox!r}>"

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be handed off, or for the grace of a death. What was handed off may still be unsettled."""
        return self.outbox.pending == 0 and self.parcels.pending == 0 and self.lifeline.next_deadline() is None

    def change_limits(self, limits: Limits) -> None:
        """Of a running sidecar. Retry curve, graces and backends stay as they are."""
        self._limits = limits
        self.rooms.change_limits(limits.rooms)
        self.outbox.change_limits(limits.outbox)
        self.parcels.settle_after_s = limits.outbox.settle_after_s
        self.dialects.decode_sglang = limits.decode_sglang

    def lives_of(self, room: int) -> list[Room]:
        """At every rank known here."""
        return [life for rank in self.ranks.known for life in self.rooms.lives_of(rank.hello.process, room)]

    # -- streams

    def receive(self, stream: int, messages: Sequence[Upward], now: float) -> None:
        """Messages that came together, in order. Those of one kind in a row are taken together, which is cheaper."""
        for kind, alike in groupby(messages, type):
            if kind is Hello:
                for hello in alike:
                    self._hello(stream, cast("Hello", hello), now)
            elif (rank := self.ranks.on(stream)) is not None:
                self._take(rank, cast("type[Fact]", kind), cast("list[Fact]", list(alike)), now)
            else:
                for _ in alike:
                    self._refuse(stream, "no_hello", "the first message of a stream is a hello")

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
        if not rank.has_said_goodbye:
            self._tell_siblings(rank)
        self._tell_orphans(now)
        self._note_quiet(now)

    # -- attempts and connections

    def attempted(self, attempts: Sequence[Attempt], now: float) -> None:
        """At different endpoints, all by this time."""
        self.outbox.attempted(attempts, now)
        self._settle_ended()

    def parcels_attempted(self, tried: SendParcels, handed_off: int, now: float) -> None:
        self.parcels.attempted(tried, handed_off, now)

    def endpoint_up(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.outbox.endpoint_up(endpoint, now)
        self.parcels.endpoint_up(endpoint, now)

    def endpoint_down(self, endpoint: DecodeEndpoint, now: float) -> None:
        self.outbox.endpoint_down(endpoint, now)
        self.parcels.endpoint_down(endpoint, now)

    def stalled(self, now: float) -> None:
        """This process stood still until now: what stayed up meanwhile proves nothing."""
        self.outbox.stalled(now)

    # -- time and output

    def handle_timer(self, now: float) -> None:
        self._acks.handle_timer(now)
        self.outbox.handle_timer(now)
        self.parcels.handle_timer(now)
        self._tell_orphans(now)
        self._settle_ended()
        self.rooms.handle_timer(now)
        self._note_quiet(now)
        if (retire_at := self._retire_at()) is not None and retire_at <= now:
            self._is_ending = True
            self._actions.append(Retire())

    def begin_shutdown(self, now: float) -> None:
        self._is_ending = True
        self.outbox.hurry(now)
        self.parcels.hurry(now)

    def next_deadline(self) -> float | None:
        parts = (self.rooms, self.outbox, self.parcels, self.lifeline, self._acks)
        return earliest((*[part.next_deadline() for part in parts], self._retire_at()))

    def take_actions(self) -> list[Action]:
        """Decode's side first and alone: replies to ranks are in no hurry, and each one wakes a process that wants the
        CPU."""
        sends: list[Action] = [*self.parcels.take_actions(), *self.outbox.take_actions()]
        if sends:
            return sends
        self._report_hand_offs()
        for rank, accepted in self._acks.take(self.ranks.connected):
            self._replies_to(rank.hello.process).append(accepted)
        for process, theirs in self.parcels.take_replies():
            self._replies_to(process).extend(theirs)
        replies: list[Action] = [SendReplies(stream, messages) for stream, messages in self._replies.items()]
        actions = replies + self._actions
        self._actions, self._replies = [], {}
        return actions

    def take_finished(self) -> list[Room]:
        """Lives to be reported: they ended without success, and nothing is owed for them any more."""
        return self.rooms.take_finished()

    # -- inside

    def _hello(self, stream: int, hello: Hello, now: float) -> None:
        if self.ranks.on(stream) is not None:
            self._refuse(stream, "second_hello", "a stream says hello once")
            self.stream_closed(stream, now)
            return
        if (reason := unwelcome(hello)) is not None:
            kind = "protocol" if hello.protocol != PROTOCOL else "implausible_hello"
            self._refuse(stream, kind, reason)
            return
        known = self.ranks.of(hello.process)
        self.stats.facts_dropped += max(0, hello.facts_dropped - (known.hello.facts_dropped if known else 0))
        rank, replaced = self.ranks.join(hello, stream)
        if replaced is not None:
            self._refuse(replaced, "replaced", "the same process said hello on a newer stream")
        self.rooms.forget_open(hello.process)  # those that live come again in the replay that follows
        for surplus in self.ranks.forget_surplus():
            self.stats.ranks_forgotten += 1
            self.rooms.forget_open(surplus.hello.process)
        self.stats.ranks_joined += 1
        self._quiet_since = None
        welcome = Welcome(
            PROTOCOL,
            self.epoch,
            hears_refusals=True,
            takes_parcels=True,
            doorbell=hello.rings,
            shares_memory=hello.rings and hello.shares_memory,
        )
        self._replies.setdefault(stream, []).append(welcome)
        self.refusals.greet(rank, now)
        self._actions.append(RankJoined(hello, is_back=known is not None))

    def _refuse(self, stream: int, kind: str, reason: str) -> None:
        self.stats.refused_streams[kind] += 1
        self._replies.setdefault(stream, []).append(Refusal(reason))
        self._actions.append(CloseStream(stream))

    def _take(self, rank: Rank, kind: type[Fact], facts: list[Fact], now: float) -> None:
        stats = self.stats
        stats.facts[kind.__name__] += len(facts)
        replayed = rank.accept(facts)
        stats.facts_replayed += len(replayed)
        self._acks.owe(now)
        believed = PLAUSIBLE[kind](facts)
        stats.facts_implausible += len(facts) - len(believed)
        self._rules[kind](rank, believed, replayed, now)
        self.parcels.hear(rank, kind, believed, now)
        self._tell_orphans(now)
        self._settle_ended()

    def _tell_siblings(self, dead: Rank) -> None:
        for rank in self.ranks.connected if dead.hello.role != TOKENIZER else ():
            if rank.hello.engine == dead.hello.engine and rank.hello.role != TOKENIZER:
                self._replies_to(rank.hello.process).append(SiblingDied())

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
                end = RoomConcluded(0, key.room, key.life, TerminalStatus.FAILED, DEATH_CAUSE, True, now, 0.0, 500)
                self._intake.conclude(rank, [end], set(), now)

    def _settle_ended(self) -> None:
        if ended := self.outbox.take_ended():
            self.rooms.note_ended(ended)
            self._reply_to_each([owed for owed in ended if owed.outcome and owed.outcome.is_settled], settled)

    def _reaffirm(self, rank: Rank, life: LifeKey, claim: Reaffirm) -> None:
        self._replies_to(life.process).append(Settled(life.room, life.life, claim.endpoint, claim.seq))

    def _report_hand_offs(self) -> None:
        for notices, stands in self.outbox.hand_offs.take_ready():
            self._reply_to_each(notices, still_handed_off if stands else no_more_handed_off)

    def _reply_to_each(self, notices: list[OwedNotice], word: Word) -> None:
        """To the ranks that these notices are of."""
        processes = dict.fromkeys([owed.life.process for owed in notices])
        for process in processes:
            if (rank := self.ranks.of(process)) is not None:
                theirs = notices if len(processes) == 1 else [one for one in notices if one.life.process == process]
                self._replies_to(process).extend(word(rank.hello, theirs))

    def _replies_to(self, process: str) -> list[Reply]:
        """Where to put them. Those to a rank that is not connected are lost: it asks again when it is back."""
        rank = self.ranks.of(process)
        if rank is None or rank.stream is None:
            return []
        return self._replies.setdefault(rank.stream, [])

    def _note_quiet(self, now: float) -> None:
        if self.ranks.connected or len(self.outbox) or len(self.parcels) or len(self.lifeline):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now

    def _retire_at(self) -> float | None:
        if self._is_ending or not self._limits.idle_exit_s or self._quiet_since is None:
            return None
        return self._quiet_since + self._limits.idle_exit_s
