"""One harness for each parser that sees bytes of others: `target(data)` returns, or the parser is broken.

A target must stand any bytes. What it asserts beyond that is said in its docstring.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

from sglang_hooks.hooks.control import ControlMessages
from sglang_hooks.messages.decode import DecodeStock, read_for_decode
from sglang_hooks.messages.prefill import PrefillStock, read_for_prefill
from sglang_hooks.messages.values import Family, Junk, Metadata, Registration, Watermark
from sglang_hooks.rank import Rank
from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.errors import WireError
from sidecar.model import PROTOCOL, ROOM_LIMIT, Hello
from sidecar.wire.decode_half import MAGIC_INDEX, acknowledged_room, acknowledgement, announced, announcement
from sidecar.wire.ingress import FrameReader, encode, reply_reader, upward_reader

STOCK = PrefillStock(Family.MOONCAKE)
OPEN_ROOM, FAILED_ROOM, SUCCEEDED_ROOM = 1, 2, 3
ROUNDS = 50
"""Of the core's timer, after which a list of at most a few messages must have come to rest."""


def hello() -> Hello:
    return Hello(PROTOCOL, "p", "e", "prefill", 0, 0, 0, 0, 1, "0", "mooncake", 300.0, {})


# -- the stream between hooks and sidecar


def _read(make_reader: Callable[[], FrameReader[Any]], data: bytes) -> list[Any]:
    """Messages, until the first WireError; the same however the stream is cut; each comes back from its own bytes."""
    whole = _messages(make_reader(), [data])
    bytewise = _messages(make_reader(), [data[at : at + 1] for at in range(len(data))])
    again = [encode(next(make_reader().feed(encode(message)))) for message in whole]

    assert [encode(message) for message in whole] == [encode(message) for message in bytewise] == again
    return whole


def _messages(reader: FrameReader[Any], pieces: list[bytes]) -> list[Any]:
    messages: list[Any] = []
    try:
        for piece in pieces:
            for message in reader.feed(piece):
                messages.append(message)
    except WireError:
        pass
    return messages


def upward_stream(data: bytes) -> None:
    _read(upward_reader, data)


def reply_stream(data: bytes) -> None:
    _read(reply_reader, data)


def upward_facts(data: bytes) -> None:
    """What could be read is taken by the core as well, and leaves it with deadlines that pass."""
    now = 100.0
    notifier = Notifier(epoch="e", limits=Limits(), jitter=lambda: 0.5, now=now)
    notifier.receive(1, [hello()], now)
    for message in _messages(upward_reader(), [data]):
        notifier.receive(2 if isinstance(message, Hello) else 1, [message], now)
    for _ in range(ROUNDS):
        while notifier.take_actions():
            pass
        deadline = notifier.next_deadline()
        if deadline is None:
            return
        assert deadline == deadline, "no time"  # noqa: PLR0124 - NaN
        now = max(now, deadline) + 1.0
        notifier.handle_timer(now)


# -- what a rank's own socket hears


class _Stage:
    """A rank with an open, a failed and a succeeded room, and the engine's tables."""

    def __init__(self) -> None:
        ticks = count(100)
        self.rank = Rank(
            hello=hello(),
            socket="/nonexistent",
            record_ttl_s=1e9,
            drain_timeout_s=30.0,
            on_absent=lambda: None,
            clock=lambda: float(next(ticks)),
        )
        self.rank.open(OPEN_ROOM)
        self.rank.release(self.rank.open(FAILED_ROOM), "gone")
        done = self.rank.open(SUCCEEDED_ROOM)
        self.rank.succeeded(done)
        self.rank.release(done, "")
        tables = {"request_status": {}, "transfer_infos": {}, "req_to_decode_prefix_len": {}, "failure_records": {}}
        self.messages = ControlMessages(SimpleNamespace(failure_lock=threading.Lock(), **tables), self.rank, STOCK)


_stage = _Stage()  # one for all: every rank has a pipe


def frames_of(data: bytes) -> list[bytes]:
    """Multipart messages have at least one frame. A byte of length, then as many bytes."""
    frames: list[bytes] = []
    while data:
        frames.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return frames or [b""]


def bytes_of(frames: list[bytes]) -> bytes:
    return b"".join(bytes([len(frame)]) + frame for frame in frames)


def control_messages(data: bytes) -> None:
    """Stock gets what it would have got, untouched, except junk, an acknowledgement, and a handshake for a room that
    has failed."""
    frames, after = frames_of(data), [b"STAGING_RSP", b"9", b"0", b"0", b"0", b"0", b"session"]
    arriving: Iterator[list[bytes]] = iter([frames, after])
    received = _stage.messages.wrap(lambda: next(arriving))()
    untouched = frames_of(data)

    message = read_for_prefill(untouched, STOCK)
    if received is frames:
        assert frames == untouched
        assert not isinstance(message, Junk)
        return
    assert received is after
    match message:
        case Metadata(room):
            assert room == FAILED_ROOM
        case Registration():
            assert message.acknowledged is not None
        case _:
            assert isinstance(message, (Junk, Watermark))


def decode_acknowledgement(data: bytes) -> None:
    """A room that sglang could draw, none, or the documented error; and what is read can be said again."""
    frames = frames_of(data)
    try:
        room = acknowledged_room(frames)
    except WireError:
        return
    if room is not None:
        assert 0 <= room < ROOM_LIMIT
        assert acknowledged_room(acknowledgement(frames[:MAGIC_INDEX], room)) == room


def decode_announcement(data: bytes) -> None:
    """What it is, none, or the documented error; and what is read can be said again."""
    frames = frames_of(data)
    try:
        found = announced(frames)
    except WireError:
        return
    if found is not None:
        said = announced(announcement(frames[: found.frames] or [b""], found.decode_half))
        assert said is not None
        assert said.frames <= MAGIC_INDEX


def decode_control_messages(data: bytes) -> None:
    """Whatever comes, of every backend: a value or junk."""
    frames = frames_of(data)
    for family in Family:
        for stands_unknown in (True, False):
            read_for_decode(frames, DecodeStock(family, stands_unknown))
        read_for_prefill(frames, PrefillStock(family, reads_bootstrap=True, reads_short_abort=True))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        upward_stream,
        reply_stream,
        upward_facts,
        control_messages,
        decode_control_messages,
        decode_acknowledgement,
        decode_announcement,
    )
}


def seeds_of(target: str) -> str:
    """The folder of the corpus. The streams share theirs: what one must read the other must refuse."""
    return "streams" if target in ("upward_stream", "reply_stream", "upward_facts") else "control_messages"
