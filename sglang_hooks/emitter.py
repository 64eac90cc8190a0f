"""One stream to the sidecar: facts out, replies in. Nothing here waits in the caller's thread.

A fact is queued under the rank's lock by whoever has it and sent by a non-blocking attempt of that same thread;
only what the kernel does not take at once is left to the emitter thread, which would get the GIL late while the
scheduler computes.
"""

import select
import socket
import threading
from collections.abc import Callable

from msgspec import structs

from sglang_hooks.complaints import Complaints
from sglang_hooks.contain import contained, note_fault
from sglang_hooks.doorbell import Doorbell
from sglang_hooks.outlet import Outlet
from sglang_hooks.shared_memory import KEEPS_ORDER
from sglang_hooks.source import Carrying, Source
from sglang_hooks.welcome import (
    RECEIVE_BYTES,
    WELCOME_LIMIT_S,
    DoorbellMissingError,
    StreamRefusedError,
    await_welcome,
)
from sidecar.errors import WireError
from sidecar.model import (
    Accepted,
    HandedOff,
    HandedOffBatch,
    Hello,
    ParcelRefused,
    ParcelsTaken,
    Refusal,
    Reply,
    RoomEnded,
    RoomQuery,
    Settled,
    SettledBatch,
    SiblingDied,
    SingleReply,
    SpaceFreed,
    TokenizerJoined,
    Welcome,
)
from sidecar.wire.ingress import FrameReader, encode, reply_reader, singly

RETRY_FIRST_S = 0.05
RETRY_LAST_S = 2.0
LOOK_EVERY_MS = 100


class Emitter(Outlet):
    def __init__(self, *, path: str, source: Source, lock: threading.Lock, on_absent: Callable[[], str | None]) -> None:
        """`lock` is the source's. `on_absent` is called when nobody serves `path`; it may start a sidecar and answers
        why it could not. `hears_refusals`, `takes_parcels`: the sidecar's last welcome. `carrier`, if there is one, is
        asked whether something is overdue."""
        super().__init__(lock=lock)
        self.hears_refusals = self.takes_parcels = False
        self.carrier: Carrying | None = None
        self.complaints = Complaints(path)
        self._path = path
        self._source = source
        self._on_absent = on_absent
        self._can_ring = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pd-sidecar-emitter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, limit_s: float) -> None:
        self._stopping.set()
        self._wake.ring()
        self._thread.join(limit_s)

    def _run(self) -> None:
        delay_s = RETRY_FIRST_S
        while not self._stopping.is_set():
            served = False
            try:
                served = self._serve_one_stream()
            except Exception:
                note_fault("Emitter._run")
            self.traffic.connected = False
            self._look(stream_ended=not self._stopping.is_set())
            delay_s = RETRY_FIRST_S if served else min(delay_s * 2, RETRY_LAST_S)
            self._stopping.wait(delay_s)

    def _serve_one_stream(self) -> bool:
        """Connects, replays and serves until the stream ends. Answers whether a sidecar welcomed us."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(WELCOME_LIMIT_S)
            reader = reply_reader()
            try:
                stream.connect(self._path)
                stream.sendall(encode(self._hello()))
                welcome, doorbell, early = await_welcome(stream, reader)
            except (OSError, WireError) as error:
                self._can_ring = self._can_ring and not isinstance(error, DoorbellMissingError)
                self._failed(error)
                return False
            self.hears_refusals, self.takes_parcels = welcome.hears_refusals, welcome.takes_parcels
            stream.setblocking(False)
            self._open_stream(stream, doorbell)
            for reply in early:
                self._handle(reply)
            self._serve(stream, reader)
            if self._overflowed:
                self.complaints.overflowed(self.traffic.facts_dropped)
            return True
        finally:
            self._close_outlet()
            stream.close()

    def _hello(self) -> Hello:
        return structs.replace(
            self._source.hello(),
            facts_dropped=self.traffic.facts_dropped,
            rings=self._can_ring,
            shares_memory=self._can_ring and KEEPS_ORDER,
        )

    @contained(otherwise=None)
    def _look(self, *, stream_ended: bool = False) -> None:
        if self.carrier is None:
            return
        if stream_ended:
            self.carrier.stream_ended()
        self.carrier.look()

    def _failed(self, error: Exception) -> None:
        self.traffic.refusals += isinstance(error, StreamRefusedError)
        absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
        why_not_started = self._on_absent() if absent else None
        reason = str(error) if why_not_started is None else f"{error}; {why_not_started}"
        self.traffic.failures += 1
        self.traffic.last_failure = reason
        self.complaints.failed(reason, is_being_started=absent and why_not_started is None)

    def _open_stream(self, stream: socket.socket, doorbell: Doorbell | None) -> None:
        replayed = self._open_outlet(stream, doorbell, self._source.replay)
        self.traffic.facts_replayed += replayed
        self.traffic.connects += 1
        self.traffic.connected = True
        self.traffic.last_failure = ""
        self.complaints.connected(replayed)

    def _serve(self, stream: socket.socket, reader: FrameReader[Reply]) -> None:
        poll = select.poll()
        poll.register(self._wake.descriptor, select.POLLIN)
        while not (self._stopping.is_set() or self._given_up or self._has_lost_some()):
            waits = self._writes_to_stream and (self._unsent or self._part)  # memory says by a reply that it has room
            poll.register(stream, select.POLLIN | (select.POLLOUT if waits else 0))
            for descriptor, events in poll.poll(None if self.carrier is None else LOOK_EVERY_MS):
                if descriptor == self._wake.descriptor:
                    self._wake.silence()
                elif events & ~select.POLLOUT and not self._receive(stream, reader):
                    return
            self._look()
            self._send_in_turn()  # without a ring, which would end the next poll at once, and so on
            self._turn_away_if_full()

    def _receive(self, stream: socket.socket, reader: FrameReader[Reply]) -> bool:
        try:
            received = stream.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            self.traffic.last_failure = f"the stream broke: {error}"
            return False
        if not received:
            self.traffic.last_failure = "the sidecar closed the stream"
            return False
        try:
            for reply in singly(reader.feed(received)):
                self._handle(reply)
        except WireError as error:
            self.traffic.last_failure = str(error)
            return False
        return True

    def _handle(self, reply: SingleReply) -> None:
        match reply:
            case Accepted(seq=seq):
                self.traffic.accepted_seq = seq
            case HandedOff():
                self._source.handed_off(reply)
            case Settled():
                self._source.settled(reply)
            case SiblingDied():
                self._source.sibling_died()
            case RoomEnded() | RoomQuery() | TokenizerJoined() | ParcelsTaken() | ParcelRefused():
                self._source.heard(reply)
            case Refusal(reason=reason):
                self.traffic.refusals += 1
                self.traffic.last_failure = reason
            case SpaceFreed() | Welcome() | HandedOffBatch() | SettledBatch():
                pass  # what waits for space is tried after this; the others are taken apart before (`singly`)
