"""What the emitter asks of whoever owns it: a prefill rank, or a tokenizer process."""

from collections.abc import Iterable
from typing import Protocol

from sidecar.model import Fact, HandedOff, Hello, RoomEnded, RoomQuery, Settled, TokenizerJoined


class Source(Protocol):
    def hello(self) -> Hello: ...

    def replay(self) -> Iterable[Fact]:
        """All that still lives, oldest first. Called with the lock held."""

    def handed_off(self, reply: HandedOff) -> None: ...

    def sibling_died(self) -> None: ...

    def settled(self, reply: Settled) -> None: ...

    def heard(self, reply: RoomEnded | RoomQuery | TokenizerJoined) -> None: ...
