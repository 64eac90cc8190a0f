"""HTTP connections within bounds, whoever they come from: each is served once, within a time, and few at once.

aiohttp alone waits without end for a client that connects and says nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

VISIT_LIMIT_S = 10.0
"""From the connection to the last byte of the answer."""


class Visitors:
    """At the limit the oldest visitor goes: one that has said nothing so far should not keep others out.

    `sent_away` counts by reason.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], *, limit: int) -> None:
        self.sent_away: Counter[str] = Counter()
        self._make = make
        self._limit = limit
        self._present: dict[_Visitor, None] = {}

    def __len__(self) -> int:
        return len(self._present)

    def __call__(self) -> asyncio.Protocol:
        return _Visitor(self, self._make())

    def enter(self, visitor: "_Visitor") -> None:
        if len(self._present) >= self._limit:
            self.send_away(next(iter(self._present)), "limit")
        self._present[visitor] = None

    def send_away(self, visitor: "_Visitor", reason: str) -> None:
        self.sent_away[reason] += 1
        self.leave(visitor)
        visitor.abort()

    def leave(self, visitor: "_Visitor") -> None:
        self._present.pop(visitor, None)


class _Visitor(asyncio.Protocol):
    """One connection, in front of aiohttp's own protocol for it."""

    def __init__(self, visitors: Visitors, served_by: asyncio.Protocol) -> None:
        self._visitors = visitors
        self._served_by = served_by
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(VISIT_LIMIT_S, self._visitors.send_away, self, "time")
        self._visitors.enter(self)
        self._served_by.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._served_by.data_received(data)

    def eof_received(self) -> bool | None:
        return self._served_by.eof_received()

    def pause_writing(self) -> None:
        self._served_by.pause_writing()

    def resume_writing(self) -> None:
        self._served_by.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._visitors.leave(self)
        self._served_by.connection_lost(exc)
