"""Two ranks, a tokenizer process and a sidecar, all real, in one thread: every message between them waits in a line of
its own until it is delivered, so that any order can be played.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sglang_hooks.door import Door
from sglang_hooks.rank import Rank
from sidecar.core.actions import Connect, SendNotices, SendReplies
from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.model import (
    PROTOCOL,
    TOKENIZER,
    DecodeEndpoint,
    Fact,
    HandedOff,
    Hello,
    Reply,
    RoomEnded,
    RoomQuery,
    Settled,
    TokenizerJoined,
)
from sidecar.wire.ingress import encode, reply_reader, upward_reader

RANKS = 2
TICK_S = 0.001
START_S = 1_000.0
TTL_S = 300.0

OnNotice = Callable[[DecodeEndpoint, int, int], None]
"""Endpoint, room, rank."""


class World:
    """`lines`: what is on its way, by (from, to). `on_notice` is called when decode gets one."""

    def __init__(self, on_notice: OnNotice) -> None:
        self.now = START_S
        self.lines: dict[tuple[str, str], deque[bytes]] = {}
        self._on_notice = on_notice
        self._streams: dict[int, str] = {}
        self._epoch = 0
        self.ranks = [self._rank(number) for number in range(RANKS)]
        self.door = Door(
            hello=_hello("door", TOKENIZER, 0),
            socket="/nonexistent",
            record_ttl_s=TTL_S,
            on_absent=lambda: None,
            clock=self.tick,
        )
        self.door.emitter.hears_refusals = True
        self._listen("door", self.door)
        self.start_sidecar([*self._sources()])

    def tick(self) -> float:
        """Time passes whenever somebody looks at the clock."""
        self.now += TICK_S
        return self.now

    def start_sidecar(self, order: Sequence[str]) -> None:
        """The first one, or a successor that knows nothing. All that is on its way is lost; the others connect again,
        in that order, and replay."""
        self._epoch += 1
        self._notifier = Notifier(epoch=str(self._epoch), limits=Limits(), jitter=lambda: 0.5, now=self.tick())
        for messages in self.lines.values():
            messages.clear()
        for stream, name in enumerate(order):
            source = self._sources()[name]
            self._streams[stream] = name
            with source.lock:
                replayed = list(source.replay())
            self._notifier.receive(stream, [source.hello(), *replayed], self.tick())
            self._act()

    def waiting_lines(self) -> list[tuple[str, str]]:
        return [line for line, messages in self.lines.items() if messages]

    def deliver(self, line: tuple[str, str]) -> None:
        message = self.lines[line].popleft()
        sender, receiver = line
        if receiver == "sidecar":
            stream = next(stream for stream, name in self._streams.items() if name == sender)
            self._notifier.receive(stream, list(upward_reader().feed(message)), self.tick())
            self._act()
        else:
            for reply in reply_reader().feed(message):
                _hear(self.door if receiver == "door" else self.ranks[int(receiver)], reply)

    def let_time_pass(self) -> None:
        """A tenth of the time for which ended rooms are remembered."""
        self.now += TTL_S / 10
        self._notifier.handle_timer(self.tick())
        self._act()

    def _sources(self) -> dict[str, Any]:
        return {**{str(number): rank for number, rank in enumerate(self.ranks)}, "door": self.door}

    def _rank(self, number: int) -> Rank:
        rank = Rank(
            hello=_hello(f"rank{number}", "prefill", number),
            socket="/nonexistent",
            record_ttl_s=TTL_S,
            drain_timeout_s=30.0,
            on_absent=lambda: None,
            clock=self.tick,
        )
        self._listen(str(number), rank)
        return rank

    def _listen(self, name: str, source: Any) -> None:
        line = self.lines.setdefault((name, "sidecar"), deque())

        def post(fact: Fact) -> None:
            line.append(encode(fact))

        source.emitter.post = post

    def _act(self) -> None:
        while actions := self._notifier.take_actions():
            for action in actions:
                match action:
                    case Connect(endpoint=endpoint):
                        self._notifier.endpoint_up(endpoint, self.now)
                    case SendNotices(offers=offers):
                        for owed in offers:
                            self._on_notice(owed.endpoint, owed.life.room, owed.notice.prefill_rank)
                        self._notifier.attempted([(action, len(offers))], self.now)
                    case SendReplies(stream=stream, messages=messages):
                        self._send(self._streams[stream], messages)
                    case _:
                        pass

    def _send(self, name: str, messages: Sequence[Reply]) -> None:
        self.lines.setdefault(("sidecar", name), deque()).extend(encode(message) for message in messages)


def _hear(source: Rank | Door, reply: Reply) -> None:
    match reply:
        case RoomEnded() | RoomQuery() | TokenizerJoined():
            source.heard(reply)
        case Settled():
            source.settled(reply)
        case HandedOff():
            source.handed_off(reply)
        case _:
            pass


def _hello(process: str, role: str, prefill_rank: int) -> Hello:
    return Hello(
        PROTOCOL, process, "engine", role, prefill_rank, prefill_rank, 0, 0, 1, "0.5.18", "mooncake", TTL_S, {}
    )
