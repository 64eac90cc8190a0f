"""What all parts of a rank share: its lives behind one lock, the numbers of its facts, and how a life is concluded."""

import threading
from collections.abc import Callable
from typing import TypeGuard

from sglang_hooks import facts
from sglang_hooks.emitter import Emitter
from sglang_hooks.lives import Joined, Life, LifeTable, Verdict
from sglang_hooks.rank_counts import RankCounts
from sidecar.model import DecodeEndpoint, DecodeHandshake, RoomConcluded, TerminalStatus

# Members of an enum are looked up on its class, which costs as much as a call.
_SUCCESS, _FAILED = Verdict.SUCCESS, Verdict.FAILED
_IS_FAILED = TerminalStatus.FAILED


class RankBook:
    """`emitter` is set by whoever is its source, before anything is posted."""

    emitter: Emitter

    def __init__(self, *, record_ttl_s: float, drain_timeout_s: float, clock: Callable[[], float]) -> None:
        self.counts = RankCounts()
        self.lock = threading.Lock()
        self.table = LifeTable(ttl_s=record_ttl_s)
        self.last_seq = 0
        self.clock = clock
        self._drain_timeout_s = drain_timeout_s

    # -- drain

    def chunk_put(self, room: int) -> Life | None:
        with self.lock:
            life = self.table.find_open(room)
            if life is not None:
                life.put += 1
            return life

    def chunk_finished(self, life: Life) -> None:
        with self.lock:
            life.finished += 1
            if life.released:
                self.conclude_if_drained(life)

    def is_quiet(self, life: Life) -> bool:
        """Nothing of the life is queued or being written at this rank, or the drain timeout has passed."""
        if life.is_drained:
            return True
        if self.clock() - life.ending_since_s < self._drain_timeout_s:
            return False
        self.doubt_drain(life)
        return True

    def doubt_drain(self, life: Life) -> None:
        """It cannot be shown that nothing of the life is being written: only a decode that holds its pages may be
        told."""
        with self.lock:
            if life.drained_in_time:
                life.drained_in_time = False
                self.counts.undrained_lives += 1

    # -- the lock is held

    def join(self, room: int, endpoint: DecodeEndpoint, session: str, *, at_s: float) -> Life:
        """The life that decode's handshake belongs to, and says so. It is `ending` if the room is past it."""
        life = self.table.find_open(room)
        if life is None:
            life = self.table.last_end(room, now=self.clock())
        if life is None or life.succeeded:
            life = self.table.find_early(room)
            if self.has_no_place(life, endpoint):
                return life
            life = self.table.meet_early(room, now=at_s)
        elif self.has_no_place(life, endpoint):
            return life
        elif life.concluded:
            self.counts.late_handshakes += 1
            self.emitter.post(self.conclusion(life, TerminalStatus.FAILED))
        self.join_known(life, endpoint, session, at_s=at_s)
        return life

    def join_known(self, life: Life, endpoint: DecodeEndpoint, session: str, *, at_s: float) -> None:
        """A life that has place for it."""
        self.last_seq = seq = self.last_seq + 1
        life.endpoints[endpoint] = Joined(session, seq, at_s)
        self.emitter.post(DecodeHandshake(seq, life.room, life.number, endpoint, session))

    def has_no_place(self, life: Life | None, endpoint: DecodeEndpoint) -> TypeGuard[Life]:
        """Then nobody can tell the endpoint; its own timeout stands."""
        if life is None or life.has_place_for(endpoint):
            return False
        self.counts.handshakes_over_limit += 1
        return True

    def is_past(self, room: int) -> bool:
        life = self.table.find_open(room)
        if life is not None:
            return life.ending and not life.succeeded
        return self.table.has_ended(room, now=self.clock())

    def seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def conclude_if_drained(self, life: Life) -> None:
        """Decode waits for the fact: the kernel has it before the books are kept."""
        if life.concluded or not (life.succeeded or life.is_drained or not life.drained_in_time):
            return
        life.concluded = True
        life.concluded_at_s = self.clock()
        if life.verdict is None:
            life.verdict = _SUCCESS if life.succeeded else _FAILED
        try:
            if not life.succeeded:
                self.counts.told_lives += 1
                self.emitter.post(self.conclusion(life, _IS_FAILED))
                self.emitter.flush()
        finally:
            self.table.close(life, now=life.concluded_at_s)

    def conclusion(self, life: Life, status: TerminalStatus) -> RoomConcluded:
        life.concluded_seq = life.concluded_seq or self.seq()
        return facts.conclusion_fact(life, status, at_s=self.clock())
