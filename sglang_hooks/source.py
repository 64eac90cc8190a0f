"""What the emitter asks of whoever owns it: a prefill rank, or a tokenizer process."""

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from sidecar.model import (
    Fact,
    HandedOff,
    Hello,
    ParcelRefused,
    ParcelsTaken,
    RoomEnded,
    RoomQuery,
    Settled,
    TokenizerJoined,
)

Heard: TypeAlias = RoomEnded | RoomQuery | TokenizerJoined | ParcelsTaken | ParcelRefused
"""For some sources only."""


class Source(Protocol):
    def hello(self) -> Hello: ...

    def replay(self) -> Iterable[Fact]:
        """All that still lives, oldest first. Called with the lock held."""

    def handed_off(self, reply: HandedOff) -> None: ...

    def sibling_died(self) -> None: ...

    def settled(self, reply: Settled) -> None: ...

    def heard(self, reply: Heard) -> None: ...


class Carrying(Protocol):
    """What has given parcels, and has an eye on them."""

    def look(self) -> None: ...

    def stream_ended(self) -> None: ...
