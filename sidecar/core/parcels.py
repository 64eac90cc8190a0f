"""Stock's own status messages, carried for ranks that ask for it: taken, handed off in order, and kept for another
attempt until the connection has stayed up for a while after it.

At least once: decode counts prefill ranks in a set, so the same message twice changes nothing there, as long as it is
still about the same request. So a parcel is void once its endpoint has restarted, or shakes hands for the same room
again. Parcels go before notices of the same pump: a request that waits for its Success counts in milliseconds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sidecar.core.actions import SendParcels
from sidecar.core.backoff import RetrySchedule
from sidecar.core.deadlines import Deadlines, Expiries
from sidecar.core.endpoint_queue import Connection
from sidecar.core.outbox import Outbox
from sidecar.core.parcel import Parcel, ParcelOutcome, ParcelRefusal
from sidecar.core.parcel_lane import Lane, ParcelLimits, length
from sidecar.core.parcel_reports import ParcelReports
from sidecar.core.ranks import Rank
from sidecar.core.stats import Stats
from sidecar.model import (
    PARCEL_BYTES_LIMIT,
    PARCEL_FRAMES_LIMIT,
    ROOM_LIMIT,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    ParcelGiven,
    Reply,
)

OFFER_BATCH = 64


class Parcels:
    def __init__(
        self, *, outbox: Outbox, limits: ParcelLimits, settle_after_s: float, schedule: RetrySchedule, stats: Stats
    ) -> None:
        self.settle_after_s = settle_after_s
        self._outbox = outbox
        self._limits = limits
        self._schedule = schedule
        self._stats = stats
        self._all: dict[tuple[str, int], Parcel] = {}
        self._of_room: dict[tuple[str, int, DecodeEndpoint], list[Parcel]] = {}
        self._lanes: dict[DecodeEndpoint, Lane] = {}
        self._bytes = 0
        self._expiries: Expiries[Parcel] = Expiries()
        self._wakes: Deadlines[DecodeEndpoint] = Deadlines()
        self._due: list[Lane] = []
        self._reports = ParcelReports()
        self._news: dict[type[Fact], Callable[[Rank, Sequence[Any], float], None]] = {
            DecodeHandshake: self._shaken_hands,
            DecodeRegistered: self._registered,
        }

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Parcels {len(self._all)} to {len(self._lanes)} endpoints>"

    @property
    def pending(self) -> int:
        return sum(len(lane.pending) for lane in self._lanes.values())

    # -- what ranks say

    def give(self, rank: Rank, facts: Sequence[ParcelGiven], _replayed: set[int], now: float) -> None:
        for fact in facts:
            if (rank.hello.process, fact.seq) not in self._all:
                self._take_or_refuse(rank, fact, now)
            self._reports.note_given(rank.hello.process, fact.seq, now)

    def hear(self, rank: Rank, kind: type[Fact], facts: Sequence[Fact], now: float) -> None:
        """What was carried to an endpoint may be void by what is heard of it."""
        if self._all and (news := self._news.get(kind)) is not None:
            news(rank, facts, now)

    # -- attempts and connections

    def attempted(self, tried: SendParcels, handed_off: int, now: float) -> None:
        """So many of them were handed off. The next one, if any, was refused, and the rest was not tried."""
        lane = self._lanes.get(tried.endpoint)
        if lane is None:
            return
        for parcel in tried.parcels[:handed_off]:
            if parcel.outcome is None:
                del lane.pending[parcel]
                lane.handed_off[parcel] = None
                parcel.handed_off_at = now
                parcel.hand_offs += 1
                self._stats.parcels_handed_off += 1
                self._stats.parcels_handed_off_again += parcel.hand_offs > 1
        if handed_off < len(tried.parcels):
            lane.settles_from = now  # it takes no more: the peer may be frozen
            self._try_later(lane, now)
        else:
            lane.refusals = 0
            self._serve(lane, now)

    def endpoint_up(self, endpoint: DecodeEndpoint, now: float) -> None:
        if (lane := self._lanes.get(endpoint)) is not None:
            lane.refusals, lane.retry_at, lane.settles_from = 0, None, now
            self._serve(lane, now)

    def endpoint_down(self, endpoint: DecodeEndpoint, now: float) -> None:
        """What was handed off may be lost: it goes before what was never tried."""
        if (lane := self._lanes.get(endpoint)) is not None:
            lane.pending = {**lane.handed_off, **lane.pending}
            lane.handed_off = {}
            self._try_later(lane, now)

    # -- time and output

    def handle_timer(self, now: float) -> None:
        self._reports.handle_timer(now)
        for parcel in self._expiries.pop_due(now):
            self._end(parcel, ParcelOutcome.EXPIRED, now)
        for endpoint in self._wakes.pop_due(now):
            self._attend(self._lanes[endpoint], now)

    def hurry(self, now: float) -> None:
        for lane in self._lanes.values():
            lane.retry_at = None
            self._serve(lane, now)

    def next_deadline(self) -> float | None:
        times = (self._wakes.next(), self._expiries.next(), self._reports.next_deadline())
        return min((at for at in times if at is not None), default=None)

    def take_actions(self) -> list[SendParcels]:
        due, self._due = self._due, []
        actions: list[SendParcels] = []
        for lane in due:
            lane.is_due = False
            if lane.pending and lane.queue.connection is Connection.UP:
                batch = [parcel for parcel, _ in zip(lane.pending, range(OFFER_BATCH), strict=False)]
                actions.append(SendParcels(lane.queue.endpoint, batch))
        return actions

    def take_replies(self) -> list[tuple[str, list[Reply]]]:
        """By process."""
        return self._reports.take()

    # -- inside

    def _take_or_refuse(self, rank: Rank, fact: ParcelGiven, now: float) -> None:
        refusal = self._reason_to_refuse(rank, fact, now)
        if refusal is not None:
            self._stats.parcels_refused[refusal.value] += 1
            self._reports.refuse(rank.hello.process, fact.seq, refusal)
            return
        parcel = Parcel(
            rank.hello.process,
            fact.seq,
            fact.room,
            fact.endpoint,
            fact.session,
            fact.frames,
            now + rank.hello.record_ttl_s,
        )
        self._stats.parcels_taken += 1
        lane = self._lanes.get(fact.endpoint)
        if lane is None:
            lane = self._lanes[fact.endpoint] = Lane(self._outbox.reach(fact.endpoint, now), now)
        self._make_room(lane, parcel, now)
        self._add(lane, parcel)
        if (known := rank.registration_of(fact.endpoint)) is not None and known.session != fact.session:
            self._end(parcel, ParcelOutcome.RESTARTED, now)
        else:
            self._serve(lane, now)

    def _reason_to_refuse(self, rank: Rank, fact: ParcelGiven, now: float) -> ParcelRefusal | None:
        if now > fact.take_by_s:
            return ParcelRefusal.LATE
        is_message = 0 < len(fact.frames) <= PARCEL_FRAMES_LIMIT and length(fact.frames) <= PARCEL_BYTES_LIMIT
        if not (is_message and 0 <= fact.room < ROOM_LIMIT):
            return ParcelRefusal.MALFORMED
        if rank.registration_of(fact.endpoint) is None:
            return ParcelRefusal.STRANGER
        if self._outbox.reach(fact.endpoint, now).connection is Connection.ABSENT:
            return ParcelRefusal.NO_SOCKET
        return None

    def _make_room(self, lane: Lane, parcel: Parcel, now: float) -> None:
        if len(lane) >= self._limits.per_endpoint:
            self._end(lane.least_needed, ParcelOutcome.DROPPED, now)
        while self._all and (
            len(self._all) >= self._limits.total or self._bytes + length(parcel.frames) > self._limits.bytes_total
        ):
            oldest = next(iter(self._all.values()))
            self._end(self._lanes[oldest.endpoint].least_needed, ParcelOutcome.DROPPED, now)

    def _add(self, lane: Lane, parcel: Parcel) -> None:
        self._lanes[parcel.endpoint] = lane  # its last parcel may just have been dropped
        lane.pending[parcel] = None
        lane.queue.parcels = len(lane)
        self._all[parcel.process, parcel.seq] = parcel
        self._of_room.setdefault((parcel.process, parcel.room, parcel.endpoint), []).append(parcel)
        self._bytes += length(parcel.frames)
        self._expiries.add(parcel)

    def _shaken_hands(self, rank: Rank, facts: Sequence[DecodeHandshake], now: float) -> None:
        for fact in facts:
            theirs = self._of_room.get((rank.hello.process, fact.room, fact.endpoint), ())
            for parcel in [parcel for parcel in theirs if parcel.seq < fact.seq]:
                self._end(parcel, ParcelOutcome.SUPERSEDED, now)

    def _registered(self, rank: Rank, facts: Sequence[DecodeRegistered], now: float) -> None:
        for fact in facts:
            lane, known = self._lanes.get(fact.endpoint), rank.registration_of(fact.endpoint)
            if lane is None or known is None:
                continue
            for parcel in [*lane.handed_off, *lane.pending]:
                if parcel.process == rank.hello.process and parcel.session != known.session:
                    self._end(parcel, ParcelOutcome.RESTARTED, now)

    def _serve(self, lane: Lane, now: float) -> None:
        """Without a connection its coming up is waited for; without a socket one is asked for again."""
        if lane.retry_at is None and lane.pending:
            if lane.queue.connection is not Connection.UP:
                self._try_later(lane, now)
            elif not lane.is_due:
                lane.is_due = True
                self._due.append(lane)
        self._wake(lane)

    def _try_later(self, lane: Lane, now: float) -> None:
        lane.refusals += 1
        lane.retry_at = now + self._schedule.delay(lane.refusals)
        self._wake(lane)

    def _attend(self, lane: Lane, now: float) -> None:
        if lane.retry_at is not None and lane.retry_at <= now:
            lane.retry_at = None
            if lane.pending:
                self._outbox.reach(lane.queue.endpoint, now)
            self._serve(lane, now)
        at = lane.settle_at(self.settle_after_s)
        if at is not None and at <= now:
            settled = [each for each in lane.handed_off if each.handed_off_at + self.settle_after_s <= now]
            for parcel in settled:
                self._end(parcel, ParcelOutcome.HELD_UP, now)
        self._wake(lane)

    def _wake(self, lane: Lane) -> None:
        times = [at for at in (lane.retry_at, lane.settle_at(self.settle_after_s)) if at is not None]
        if times and len(lane):
            self._wakes.set(lane.queue.endpoint, min(times))
        else:
            self._wakes.clear(lane.queue.endpoint)

    def _end(self, parcel: Parcel, outcome: ParcelOutcome, now: float) -> None:
        parcel.outcome = outcome
        self._stats.parcels_ended[outcome.value] += 1
        lane = self._lanes[parcel.endpoint]
        lane.pending.pop(parcel, None)
        lane.handed_off.pop(parcel, None)
        del self._all[parcel.process, parcel.seq]
        room = (parcel.process, parcel.room, parcel.endpoint)
        self._of_room[room].remove(parcel)
        if not self._of_room[room]:
            del self._of_room[room]
        self._bytes -= length(parcel.frames)
        if outcome is not ParcelOutcome.EXPIRED:
            self._expiries.note_over()
        self._reports.note_ended(parcel.process, parcel.seq, now)
        lane.queue.parcels = len(lane)
        if not len(lane):
            del self._lanes[parcel.endpoint]
            self._wakes.clear(parcel.endpoint)
            self._outbox.release(lane.queue, now)
