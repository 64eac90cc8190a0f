"""The emitter's sending half: facts are queued, and go to the kernel by non-blocking attempts of whoever has one: to
the buffer of the stream, or to memory that is shared with the sidecar and is, like that, bounded and there after this
process has ended.
"""

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from sglang_hooks.complaints import Traffic
from sglang_hooks.contain import note_fault
from sglang_hooks.doorbell import Doorbell
from sglang_hooks.kernel import send_now
from sglang_hooks.wake import Wake
from sidecar.errors import WireError
from sidecar.model import Fact
from sidecar.wire.ingress import encode

UNSENT_LIMIT = 65_536
"""Facts queued for a sidecar that does not read: 20,000 aborted rooms, 10 MB. A replay makes good for those beyond."""

BATCH_FRAMES = 32
WRITE_LIMIT_S = 0.005
REPLAY_LIMIT_S = 1.0
LOOK_MS = 20
LOOK_INTO_MEMORY_MS = 1
"""Memory does not say when it has room."""

RING_EVERY = 128
_RING_BYTES = 256
"""Sends that may lie unread, and as many of so many bytes: the kernel takes 278 small ones before a reader has to come
(`net.core.wmem_default`), shared memory 128 KiB. Half of either is left for a Success."""


class Outlet:
    """`traffic` counts. `post` queues a fact: the caller holds the lock, and calls `flush` after it has let go. It is
    the queue's own append while a stream is open, and costs what that costs. What is posted while there is none is
    dropped: the replay that opens the next stream says it.
    """

    post: Callable[[Fact], None]

    def __init__(self, *, lock: threading.Lock) -> None:
        """`lock` guards the queue."""
        self.traffic = Traffic()
        self.post = _nobody_hears
        self._lock = lock
        self._unsent: deque[Fact] = deque()
        self._sending = threading.Lock()
        self._is_replaying = False
        self._is_stuck = False  # the kernel takes no more: the emitter thread waits for it to do so
        self._part = b""
        self._stream: socket.socket | None = None
        self._doorbell: Doorbell | None = None
        self._write: Callable[[bytes], int] = _nobody_reads
        self._writes_to_stream = True  # not to memory that is shared with the sidecar
        self._wakes = False  # somebody has posted what the sidecar must read at once
        self._must_ring = False  # and it is on its way
        self._unrung = 0
        self._wake = Wake()
        self._given_up = False
        self._overflowed = False
        self._dropped_before = 0
        self._unsent_limit = UNSENT_LIMIT

    @property
    def is_open(self) -> bool:
        """Whether what is posted now goes to the sidecar that has sent the last welcome."""
        return not (self._stream is None or self._overflowed or self._given_up)

    def flush(self, *, wakes: bool = True) -> None:
        """Sends what the kernel takes now. Any thread; never blocks: whoever finds another thread sending leaves it
        to that one, which looks again after it has let go. What is not taken is the emitter thread's from then on.

        Not `wakes`: nothing is to be done about it before the sidecar looks by itself or is woken for something else.
        """
        if wakes:
            self._wakes = True  # after the fact was queued: whoever takes this back sends that before it rings
        if self._is_stuck:
            if not self._overflowed and len(self._unsent) > self._unsent_limit:
                self._wake.ring()
        elif not self._send_in_turn():
            self._wake.ring()

    def flush_or_break(self, *, may_wait: bool = True) -> None:
        """Afterwards either the kernel has all that was posted before, which even SIGKILL does not take back, or
        there is no stream.

        For transfer workers, before a Success is pushed: a sidecar that has not heard of it must not think, should
        this process die now, that the room was still open. It need not be woken for that, it reads a dead process's
        stream to its end. Waits at most WRITE_LIMIT_S for another thread's attempt, and a worker REPLAY_LIMIT_S for a
        replay to be taken: broken off each time, a long one would never end.
        """
        if self._stream is None:
            return
        may_wait = may_wait and self._is_replaying
        limit_s = REPLAY_LIMIT_S if may_wait else WRITE_LIMIT_S
        if not self._overflowed and self._sending.acquire(timeout=limit_s):
            try:
                took_all = self._send_some() or (may_wait and self._send_replay(limit_s))
            finally:
                self._sending.release()
            if took_all:
                if self._unsent or self._part or self._wakes:
                    self.flush(wakes=False)  # what others have left to this thread meanwhile
                return
        self._break_stream()

    # -- the emitter's thread

    def _open_outlet(
        self, stream: socket.socket, doorbell: Doorbell | None, replay: Callable[[], Iterable[Fact]]
    ) -> int:
        """How many facts are replayed; `replay` is called with the lock held."""
        with self._lock:
            replayed = list(replay())
            self._unsent.clear()
            self._unsent.extend(replayed)
            self._unsent_limit = UNSENT_LIMIT + len(replayed)
            self._part = b""
            self._given_up = self._overflowed = self._is_stuck = False
            self._is_replaying = True
            self._stream, self._doorbell = stream, doorbell
            shared = None if doorbell is None else doorbell.write
            self._writes_to_stream = shared is None
            self.traffic.shares_memory = shared is not None
            self._write = partial(send_now, stream) if shared is None else shared
            self.post = self._unsent.append
        self.flush()
        return len(replayed)

    def _close_outlet(self) -> None:
        stream = self._stream
        if stream is None:
            return
        with self._lock:
            self._stream = None
            self.post = _nobody_hears
        with self._sending:
            stream.close()
            if self._doorbell is not None:
                self._doorbell.close()
                self._doorbell = None

    def _turn_away_if_full(self) -> None:
        """Without the lock, which one thread after another may take before this one gets it."""
        if len(self._unsent) > self._unsent_limit and not self._overflowed:
            self._overflowed, self._dropped_before = True, self.traffic.facts_dropped
            self.post = self._turn_away

    def _has_lost_some(self) -> bool:
        """The stream has taken all that was queued, and that was not all: the next one's replay must tell the rest. If
        nobody came meanwhile there is no rest."""
        if not self._overflowed or self._unsent or self._part:
            return False
        with self._lock:
            if self.traffic.facts_dropped == self._dropped_before:
                self._overflowed = False
                self.post = self._unsent.append
        return self._overflowed

    def _turn_away(self, _: Fact) -> None:
        self.traffic.facts_dropped += 1

    # -- sending

    def _send_in_turn(self) -> bool:
        """Whether nothing is left to this thread."""
        while self._unsent or self._part or self._wakes:
            if not self._sending.acquire(False):
                return True
            try:
                if not self._send_some():
                    return False
            finally:
                self._sending.release()
        return True

    def _send_some(self) -> bool:
        """Whether all has gone. Whoever sends the last of it lets go of *stuck*, whichever thread waits for that."""
        if self._stream is None:
            self._is_stuck = True
            return False
        while (part := self._part or self._next_part()) is not None:
            if not part:
                continue
            try:
                sent = self._write(part)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except (OSError, WireError) as error:
                self._is_stuck = self._given_up = True
                self.traffic.last_failure = f"the stream broke: {error}"
                return False
            if not sent:
                self._is_stuck = True
                self._ring()
                return False
            self._part = part[sent:]
            self._unrung += 1 + sent // _RING_BYTES
        if self._must_ring or self._unrung >= RING_EVERY:
            self._must_ring = False
            self._ring()
        self._is_replaying = self._is_stuck = False
        return True

    def _ring(self) -> None:
        self._unrung = 0
        if self._doorbell is not None:
            self._doorbell.ring()

    def _next_part(self) -> bytes | None:
        if self._wakes:
            self._wakes, self._must_ring = False, True
        unsent = self._unsent
        if not unsent:
            return None
        part, count = b"", 0
        try:
            while unsent and count < BATCH_FRAMES:
                fact = unsent.popleft()
                count += 1
                try:
                    part += encode(fact)
                except Exception:  # it takes nothing else with it
                    note_fault("Outlet._next_part")
        except IndexError:
            pass  # another thread has cleared it: the stream is given up. contextlib.suppress takes 1 us more
        self.traffic.facts_sent += count
        self._part = part
        return part

    def _send_replay(self, limit_s: float) -> bool:
        """Waits while the sidecar takes a replay. Whether all that is queued has gone."""
        ends_at, stream = time.monotonic() + limit_s, self._stream
        if stream is None:
            return False
        writable = select.poll()
        if self._writes_to_stream:
            writable.register(stream, select.POLLOUT)
        while self._is_replaying and not self._given_up and time.monotonic() < ends_at:
            writable.poll(LOOK_MS if self._writes_to_stream else LOOK_INTO_MEMORY_MS)
            if self._send_some():
                return True
        return False

    def _break_stream(self) -> None:
        stream = self._stream
        if stream is None:
            return
        self._given_up = True
        self.traffic.last_failure = "the sidecar did not take a Success in time"
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
        self._wake.ring()


def _nobody_hears(_: Fact) -> None:
    """There is no stream."""


def _nobody_reads(_: bytes) -> int:
    """Likewise."""
    return 0
