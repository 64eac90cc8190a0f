"""One prefill rank as the plugin sees it: its lives behind one lock, and the stream that tells the sidecar of them.

A change of the table and the fact that tells it are one step under the lock, so facts never overtake each other;
sending comes after the lock. Called from the scheduler thread, the bootstrap thread and the transfer workers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, assert_never

from msgspec import structs

from sglang_hooks import causes, facts
from sglang_hooks.carrier import Carrier
from sglang_hooks.contain import FAULTS
from sglang_hooks.emitter import Emitter
from sglang_hooks.lives import Life
from sglang_hooks.rank_book import RankBook
from sglang_hooks.registrations import Registrations
from sglang_hooks.senderless import Senderless
from sglang_hooks.source import Heard
from sidecar.model import (
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeRegistered,
    Fact,
    Goodbye,
    HandedOff,
    Hello,
    ParcelRefused,
    ParcelsTaken,
    RoomEnded,
    RoomQuery,
    Settled,
    TerminalStatus,
    TokenizerJoined,
)

EARLY_REPEAT_AFTER_S = 60.0
"""A sidecar forgets an early life after the record TTL, which is never shorter than 300 s. One that is opened after
this long is told in full again."""


class Rank(RankBook):
    def __init__(
        self,
        *,
        hello: Hello,
        socket: str,
        record_ttl_s: float,
        drain_timeout_s: float,
        on_absent: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(record_ttl_s=record_ttl_s, drain_timeout_s=drain_timeout_s, clock=clock)
        self.emitter = Emitter(path=socket, source=self, lock=self.lock, on_absent=on_absent)
        self.senderless = Senderless(self)
        self.registrations = Registrations()
        self.carrier: Carrier | None = None
        self._hello = structs.replace(hello, hears_hand_offs=True, hears_refusals=True, hears_batches=True)
        self.backend = hello.backend
        self.coming: tuple[int, str] = (-1, "")  # room and traceparent of the request that has come to its queue

    def carry_statuses(self) -> None:
        """Before the emitter starts."""
        self.carrier = self.emitter.carrier = Carrier(
            emitter=self.emitter,
            registrations=self.registrations,
            lock=self.lock,
            next_seq=self.seq,
            clock=self.clock,
        )

    # -- the emitter's questions

    def hello(self) -> Hello:
        return self._hello

    def replay(self) -> Iterator[Fact]:
        """The lock is held."""
        yield from self.registrations
        if self.carrier is not None:
            yield from self.carrier.replay()  # before the handshakes that make some of them void
        yield from facts.replay(self.table, now=self.clock())

    def handed_off(self, reply: HandedOff) -> None:
        with self.lock:
            life = self.table.find(reply.room, reply.life)
            if life is not None and life.concluded:
                life.note_hand_off(reply.endpoint, reply.seq, stands=reply.stands)

    def settled(self, reply: Settled) -> None:
        with self.lock:
            life = self.table.find(reply.room, reply.life)
            if life is not None and life.concluded:
                life.settle(reply.endpoint, reply.seq)

    def heard(self, reply: Heard) -> None:
        match reply:
            case TokenizerJoined():
                self.senderless.tokenizer_joined()
            case RoomEnded():
                self.senderless.judge(reply)
            case RoomQuery():
                pass  # for tokenizer processes
            case ParcelsTaken() | ParcelRefused():
                if self.carrier is not None:
                    self.carrier.heard(reply)
            case _:
                assert_never(reply)

    # -- a life's way

    def open(self, room: int, traceparent: str = "") -> Life:
        """Told together with the room's next fact, which spares the sidecar a wake-up for each request: until then
        nobody is owed anything. At once if something may still be owed for an older life."""
        with self.lock:
            life = self.table.open(room)
            life.opened_seq, life.opened_at_s, life.traceparent = self.seq(), self.clock(), traceparent
            self.emitter.post(facts.opening_fact(life))
            is_stale = life.early_since_s > 0 and self.clock() - life.early_since_s >= EARLY_REPEAT_AFTER_S
            for endpoint in life.endpoints if is_stale else ():
                self.emitter.post(facts.handshake_fact(life, endpoint))
        if is_stale or life.previous is not None:
            self.emitter.flush()
        return life

    def traceparent_of(self, room: int) -> str:
        """Of the request with that room, if it is the one that is coming."""
        return self.coming[1] if self.coming[0] == room else ""

    def meet(self, room: int, endpoint: DecodeEndpoint, session: str, frames: Sequence[bytes] = ()) -> bool:
        """A non-dummy decode endpoint sent its metadata. Answers whether stock must not see the message: the room is
        past it, or it is held until that is known."""
        return self.senderless.meet(room, endpoint, session, frames)

    def meet_dummy(self, room: int, frames: Sequence[bytes]) -> bool:
        """The same for a dummy endpoint: nobody is told, but nothing may be rebuilt either."""
        return self.senderless.meet(room, None, "", frames)

    def is_late(self, room: int) -> bool:
        """Nothing may be rebuilt for the room: it has ended, or ends."""
        with self.lock:
            return self.is_past(room)

    def refuse(self, room: int, cause: str, http_status: int = 0) -> None:
        """The scheduler refused a request with that room before it had a sender."""
        self.senderless.refuse(room, cause, http_status)

    def decode_aborted(self, room: int, endpoint: DecodeEndpoint) -> bool:
        """Decode gave the room up. Answers whether the message is about an older life and must not fail the open
        one."""
        with self.lock:
            self.senderless.doubts.give_up(room, endpoint)
            life = self.table.find_open(room)
            guard = False
            if life is None:
                life = self.table.last_end(room, now=self.clock()) or self.table.leave_early(room, endpoint)
                if life is None:
                    return False
                number = life.number
                life.owe_no_more(endpoint)
            elif endpoint in life.endpoints or life.previous is None:
                self.counts.shared_endpoint_aborts += life.previous is not None
                life.owe_no_more(endpoint)
                number = life.number
            else:
                guard = True
                self.counts.guarded_aborts += 1
                number = life.previous
                if (older := self.table.find(room, number)) is not None:
                    older.owe_no_more(endpoint)
            self.emitter.post(DecodeAborted(self.seq(), room, number, endpoint))
        self.emitter.flush()
        return guard

    def registered(self, endpoint: DecodeEndpoint, session: str, frames: int, decode_half: str = "") -> None:
        with self.lock:
            fact = DecodeRegistered(self.seq(), endpoint, session, frames, decode_half)
            self.registrations.note(fact)
            self.emitter.post(fact)
        self.emitter.flush()

    def decode_acknowledged(self, room: int, endpoint: DecodeEndpoint) -> None:
        """Decode's own half took the notice. It can only be about the room's last end: nobody is told of an open
        life."""
        with self.lock:
            number = self._number_of_end(room)
            if number is None:
                return
            if (life := self.table.find(room, number)) is not None:
                life.owe_no_more(endpoint)
            self.emitter.post(DecodeAcknowledged(self.seq(), room, number, endpoint))
        self.emitter.flush()

    def begin_end(self, life: Life, cause: str, http_status: int = 0) -> bool:
        """The life will not succeed unless it already has. The first cause stands. Answers whether this was the
        first call."""
        with self.lock:
            return self._begin_end(life, cause, http_status)

    def name_cause(self, life: Life, cause: str, http_status: int = 0) -> None:
        """A cause known before the end begins; a later one does not replace it."""
        with self.lock:
            if not life.cause:
                life.cause, life.http_status = cause[: causes.LIMIT], http_status

    def succeeded(self, life: Life, *, may_wait: bool = True) -> None:
        """A transfer worker is about to push Success to decode: told first, so that our death cannot contradict it.
        Another thread may not wait."""
        with self.lock:
            if life.succeeded or life.concluded:
                return
            life.succeeded = True
            self.emitter.post(self.conclusion(life, TerminalStatus.SUCCESS))
        self.emitter.flush_or_break(may_wait=may_wait)

    def release(self, life: Life, cause: str, http_status: int = 0) -> None:
        """The engine lets go of the life. It is concluded now, or by the worker that finishes its last chunk."""
        with self.lock:
            self._begin_end(life, cause, http_status)
            life.released = True
            self.conclude_if_drained(life)
        self.emitter.flush(wakes=False)  # an end was rung for where it was told; a request that went well has none

    def sibling_died(self) -> None:
        """The engine cannot go on, and its scheduler may wait for the dead rank for good: every life ends here, on the
        emitter's thread, each once it is drained."""
        with self.lock:
            self.counts.deaths_of_siblings += 1
            unfinished = self.table.take_unfinished()
        for life in unfinished:
            self.release(life, causes.SIBLING_DIED, causes.UNAVAILABLE)
        self.senderless.judge_all()

    def is_superseded(self, life: Life) -> bool:
        """A newer life of the same room is open: the engine's tables belong to that one."""
        return self._newer(life) is not None  # one look, which no lock makes newer

    def is_taken_over(self, life: Life, endpoint: DecodeEndpoint) -> bool:
        """The endpoint takes part in a newer life of the room, and would take a word about this one for that."""
        with self.lock:
            newer = self._newer(life)
            return newer is not None and endpoint in newer.endpoints

    # -- the engine's tables

    def purge_if_ended(self, room: int, purge: Callable[[], bool]) -> bool:
        """Runs `purge` if the room has ended and no life of it is open, and passes on its answer. Not while the engine
        has a message for that room in hand: it will be purged after it."""
        if not self.table.knows_an_end(room):
            return False
        with self.lock:
            if self.senderless.in_hand == room:
                return False
            return self.table.has_ended(room, now=self.clock()) and purge()

    def say_goodbye(self, *, limit_s: float) -> None:
        """At an orderly end, so that it is no news. With a request still here there is no goodbye: decode is then told
        by our death, as it must be."""
        with self.lock:
            if self.table.is_quiet(now=self.clock()) and not len(self.senderless.doubts):
                self.emitter.post(Goodbye(self.seq()))
        self.emitter.flush()
        self.emitter.stop(limit_s=limit_s)

    def report(self) -> dict[str, Any]:
        """For sglang's `/server_info`: what the plugin has counted in this rank."""
        with self.lock:
            return {
                "stream": asdict(self.emitter.traffic),
                "counts": asdict(self.counts),
                "lives": self.table.counts(),
                "doubts": len(self.senderless.doubts),
                "losses": asdict(self.table.losses) | {"registrations_evicted": self.registrations.evicted},
                "faults": dict(FAULTS),
                "parcels": {} if self.carrier is None else self.carrier.report(),
            }

    # -- the lock is held

    def _begin_end(self, life: Life, cause: str, http_status: int) -> bool:
        if life.ending:
            return False
        life.ending, life.ending_since_s = True, self.clock()
        if not life.cause:
            life.cause, life.http_status = causes.shortened(cause), http_status
        return True

    def _newer(self, life: Life) -> Life | None:
        found = self.table.find_open(life.room)
        return None if found is life else found

    def _number_of_end(self, room: int) -> int | None:
        life = self.table.find_open(room)
        if life is not None:
            return life.previous
        life = self.table.last_end(room, now=self.clock())
        if life is None and (early := self.table.find_early(room)) is not None:
            return early.previous
        return None if life is None else life.number
