"""The tokenizer process as the plugin sees it: which rooms its requests have now, and which it has refused.

A normal request costs two changes of a dict: nothing is sent unless one is refused, or a rank asks.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from msgspec import structs

from sglang_hooks import causes
from sglang_hooks.emitter import Emitter
from sglang_hooks.source import Heard
from sidecar.model import (
    Fact,
    HandedOff,
    Hello,
    ParcelRefused,
    ParcelsTaken,
    RoomAnswered,
    RoomEnded,
    RoomQuery,
    RoomRefused,
    Settled,
    TokenizerJoined,
)

IN_USE_LIMIT = 65_536
REFUSAL_LIMIT = 4_096


@dataclass
class DoorCounts:
    refused: int = 0
    answered: int = 0
    refusals_evicted: int = 0
    in_use_evicted: int = 0


class Door:
    """Everything is decided under one lock, with the time read there: an answer as of a time knows all that was
    accepted before it."""

    def __init__(
        self,
        *,
        hello: Hello,
        socket: str,
        record_ttl_s: float,
        on_absent: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = DoorCounts()
        self.lock = threading.Lock()
        self.emitter = Emitter(path=socket, source=self, lock=self.lock, on_absent=on_absent)
        self.emitter.complaints.leaves_absence_to_others = True  # a rank complains if none can be started
        self.last_seq = 0
        self._hello = structs.replace(hello, hears_refusals=True)
        self._record_ttl_s = record_ttl_s
        self._clock = clock
        self._in_use: dict[int, float] = {}  # since when
        self._refused_before: dict[int, RoomRefused] = {}  # of rooms in use: what was said of them last was a refusal
        self._refused: OrderedDict[int, RoomRefused] = OrderedDict()

    # -- what the process does with its requests

    def accept(self, room: int) -> None:
        """Before the request goes to a scheduler."""
        with self.lock:
            if self._refused and (refused := self._refused.pop(room, None)) is not None:
                self._refused_before[room] = refused
            self._in_use[room] = self._clock()
            if len(self._in_use) > IN_USE_LIMIT:
                self._forget(next(iter(self._in_use)))
                self.counts.in_use_evicted += 1

    def finish(self, room: int) -> None:
        with self.lock:
            self._forget(room)

    def refuse(self, room: int, cause: str, http_status: int) -> None:
        """Not if another request with that room is at work: a refusal says that the room has ended."""
        with self.lock:
            if room in self._in_use:
                return
            self._forget_expired()
            fact = RoomRefused(self._seq(), room, causes.shortened(cause), http_status, self._clock())
            self._refused.pop(room, None)
            self._refused[room] = fact
            self.counts.refused += 1
            if len(self._refused) > REFUSAL_LIMIT:
                self._refused.popitem(last=False)
                self.counts.refusals_evicted += 1
            self._post(fact)
        self.emitter.flush()

    def is_in_use(self, room: int) -> bool:
        return room in self._in_use

    # -- the emitter's questions

    def hello(self) -> Hello:
        return self._hello

    def replay(self) -> Iterator[Fact]:
        """The lock is held."""
        self._forget_expired()
        return iter(tuple(self._refused.values()) if self.emitter.hears_refusals else ())

    def heard(self, reply: Heard) -> None:
        match reply:
            case RoomQuery(room=room):
                self._answer(room)
            case RoomEnded() | TokenizerJoined() | ParcelsTaken() | ParcelRefused():
                pass  # for ranks
            case _:
                assert_never(reply)

    def handed_off(self, reply: HandedOff) -> None:
        """For ranks."""

    def settled(self, reply: Settled) -> None:
        """For ranks."""

    def sibling_died(self) -> None:
        """For ranks."""

    # -- inside

    def _answer(self, room: int) -> None:
        with self.lock:
            now, accepted_at_s = self._clock(), self._in_use.get(room, 0.0)
            refused = (self._refused_before if accepted_at_s else self._refused).get(room)
            answer = RoomAnswered(self._seq(), room, now, accepted_at_s, 0.0, "", 0)
            if refused is not None:
                answer = structs.replace(
                    answer,
                    refused_until_s=accepted_at_s or now,
                    cause=refused.cause,
                    http_status=refused.http_status,
                )
            self.counts.answered += 1
            self._post(answer)
        self.emitter.flush()

    def _post(self, fact: Fact) -> None:
        if self.emitter.hears_refusals:
            self.emitter.post(fact)

    def _seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def _forget(self, room: int) -> None:
        self._in_use.pop(room, None)
        if self._refused_before:
            self._refused_before.pop(room, None)

    def _forget_expired(self) -> None:
        oldest = next(iter(self._refused.values()), None)
        while oldest is not None and oldest.at_s + self._record_ttl_s <= self._clock():
            self._refused.popitem(last=False)
            oldest = next(iter(self._refused.values()), None)
