"""One stream to the sidecar: facts out, replies in. Nothing here waits in the caller's thread.

A fact is queued under the rank's lock by whoever has it and sent by a non-blocking attempt of that same thread;
only what the kernel does not take at once is left to the emitter thread, which would get the GIL late while the
scheduler computes.
"""

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from msgspec import structs

from sglang_hooks.complaints import Complaints, Traffic
from sglang_hooks.contain import contained, note_fault
from sglang_hooks.kernel import send_now
from sglang_hooks.source import Carrying, Source
from sglang_hooks.wake import Wake
from sglang_hooks.welcome import RECEIVE_BYTES, WELCOME_LIMIT_S, StreamRefusedError, await_welcome
from sidecar.errors import WireError
from sidecar.model import (
    Accepted,
    Fact,
    HandedOff,
    HandedOffBatch,
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
    TokenizerJoined,
    Welcome,
)
from sidecar.wire.ingress import FrameReader, encode, reply_reader, singly

UNSENT_LIMIT = 65_536
"""Facts queued for a sidecar that does not read: 20,000 aborted rooms, 10 MB. A replay makes good for those beyond."""

BATCH_FRAMES = 256
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 2.0
WRITE_LIMIT_S = 0.005
REPLAY_LIMIT_S = 1.0
LOOK_MS = 20
LOOK_EVERY_MS = 100


class Emitter:
    def __init__(self, *, path: str, source: Source, lock: threading.Lock, on_absent: Callable[[], str | None]) -> None:
        """`lock` guards the queue and is the source's. `on_absent` is called when nobody serves `path`; it may start
        a sidecar and answers why it could not. `hears_refusals`, `takes_parcels`: the sidecar's last welcome.
        `carrier`, if there is one, is asked whether something is overdue."""
        self.traffic = Traffic()
        self.hears_refusals = self.takes_parcels = False
        self.carrier: Carrying | None = None
        self._path = path
        self._source = source
        self._lock = lock
        self._on_absent = on_absent
        self._unsent: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._is_replaying = False
        self._is_stuck = False  # the kernel takes no more: the emitter thread waits for it to do so
        self._part = b""
        self._socket: socket.socket | None = None
        self._wake = Wake()
        self._given_up = False
        self._overflowed = False
        self._unsent_limit = UNSENT_LIMIT
        self.complaints = Complaints(path)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pd-sidecar-emitter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, limit_s: float) -> None:
        self._stopping.set()
        self._wake.ring()
        self._thread.join(limit_s)

    @property
    def is_open(self) -> bool:
        """Whether what is posted now goes to the sidecar that has sent the last welcome."""
        return not (self._socket is None or self._overflowed or self._given_up)

    def post(self, fact: Fact) -> None:
        """Queues a fact. The caller holds the lock; it calls `flush` after it has let go."""
        if self._socket is None:
            return  # the replay that opens the next stream says it
        if self._overflowed or len(self._unsent) >= self._unsent_limit:
            self.traffic.facts_dropped += 1
            if not self._overflowed:
                self._overflowed = True
                self._wake.ring()
            return
        self._unsent.append(encode(fact))

    def flush(self) -> None:
        """Sends what the kernel takes now. Any thread; never blocks: whoever finds another thread sending leaves it
        to that one, which looks again after it has let go. What is not taken is the emitter thread's from then on."""
        if not self._is_stuck and not self._send_in_turn():
            self._wake.ring()

    def _send_in_turn(self) -> bool:
        """Whether nothing is left to this thread."""
        while self._unsent or self._part:
            if not self._sending.acquire(blocking=False):
                return True
            try:
                self._is_stuck = not self._send_some()
                if self._is_stuck:
                    return False
            finally:
                self._sending.release()
        return True

    def flush_or_break(self, *, may_wait: bool = True) -> None:
        """Afterwards either the kernel has all that was posted before, which even SIGKILL does not take back, or
        there is no stream.

        For transfer workers, before a Success is pushed: a sidecar that has not heard of it must not think, should
        this process die now, that the room was still open. Waits at most WRITE_LIMIT_S for another thread's attempt,
        and a worker REPLAY_LIMIT_S for a replay to be taken: broken off each time, a long one would never end.
        """
        if self._socket is None:
            return
        may_wait = may_wait and self._is_replaying
        limit_s = REPLAY_LIMIT_S if may_wait else WRITE_LIMIT_S
        if not self._overflowed and self._sending.acquire(timeout=limit_s):
            try:
                took_all = self._send_some() or (may_wait and self._send_replay(limit_s))
            finally:
                self._sending.release()
            if took_all:
                return
        self._break_stream()

    def _send_replay(self, limit_s: float) -> bool:
        """Waits while the sidecar takes a replay. Whether all that is queued has gone."""
        ends_at, stream = time.monotonic() + limit_s, self._socket
        if stream is None:
            return False
        writable = select.poll()
        writable.register(stream, select.POLLOUT)
        while self._is_replaying and not self._given_up and time.monotonic() < ends_at:
            writable.poll(LOOK_MS)
            if self._send_some():
                return True
        return False

    def _break_stream(self) -> None:
        stream = self._socket
        if stream is None:
            return
        self._given_up = True
        self.traffic.last_failure = "the sidecar did not take a Success in time"
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
        self._wake.ring()

    def _send_some(self) -> bool:
        stream = self._socket
        if stream is None:
            return False
        while self._part or self._has_next_batch():
            try:
                sent = send_now(stream, self._part)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._given_up = True
                self.traffic.last_failure = f"the stream broke: {error}"
                return False
            self._part = self._part[sent:]
        self._is_replaying = False
        return True

    def _has_next_batch(self) -> bool:
        unsent = self._unsent
        if not unsent:
            return False
        frames: list[bytes] = []
        try:
            while unsent and len(frames) < BATCH_FRAMES:
                frames.append(unsent.popleft())
        except IndexError:
            pass  # another thread has cleared it: the stream is given up. contextlib.suppress takes 1 us more
        self.traffic.facts_sent += len(frames)
        self._part = b"".join(frames)
        return bool(frames)

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
                stream.sendall(encode(structs.replace(self._source.hello(), facts_dropped=self.traffic.facts_dropped)))
                welcome, early = await_welcome(stream, reader)
            except (OSError, WireError) as error:
                self._failed(error)
                return False
            self.hears_refusals, self.takes_parcels = welcome.hears_refusals, welcome.takes_parcels
            stream.setblocking(False)
            self._open_stream(stream)
            for reply in early:
                self._handle(reply)
            self._serve(stream, reader)
            if self._overflowed:
                self.complaints.overflowed(self.traffic.facts_dropped)
            return True
        finally:
            with self._lock:
                self._socket = None
            with self._sending:
                stream.close()

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

    def _open_stream(self, stream: socket.socket) -> None:
        with self._lock:
            self._unsent.clear()
            self._part = b""
            self._given_up = self._overflowed = self._is_stuck = False
            self._socket = stream
            replayed = 0
            for fact in self._source.replay():
                self._unsent.append(encode(fact))
                replayed += 1
            self._is_replaying = True
            self._unsent_limit = UNSENT_LIMIT + replayed
        self.traffic.facts_replayed += replayed
        self.traffic.connects += 1
        self.traffic.connected = True
        self.traffic.last_failure = ""
        self.complaints.connected(replayed)
        self.flush()

    def _serve(self, stream: socket.socket, reader: FrameReader[Reply]) -> None:
        poll = select.poll()
        poll.register(self._wake.descriptor, select.POLLIN)
        while not (
            self._stopping.is_set() or self._given_up or (self._overflowed and not (self._unsent or self._part))
        ):
            wanted = select.POLLIN | (select.POLLOUT if self._unsent or self._part else 0)
            poll.register(stream, wanted)
            for descriptor, events in poll.poll(None if self.carrier is None else LOOK_EVERY_MS):
                if descriptor == self._wake.descriptor:
                    self._wake.silence()
                elif events & ~select.POLLOUT and not self._receive(stream, reader):
                    return
            self._look()
            self._send_in_turn()  # without a ring, which would end the next poll at once, and so on

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
            case Welcome() | HandedOffBatch() | SettledBatch():
                pass  # taken apart before: `singly`
