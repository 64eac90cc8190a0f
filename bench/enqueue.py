"""What a fact costs the thread that has it, with the sidecar alive, stopped and absent, and what stock's own send to a
dead endpoint costs that thread.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from statistics import median

import zmq

from bench.endpoints import refused_port
from bench.running import RunningSidecar, connected_rank, make_rank, percentile
from bench.samples import Figures, Samples, keep, percentiles, us
from sglang_hooks.rank import Rank
from sidecar.model import RoomConcluded, TerminalStatus
from sidecar.wire.ingress import encode

PACE_S = 0.0002
FIRST_OF_STOPPED = 1_000_000
UNHEARD = 4
"""Times as many lives end unheard: more than the queue for a stopped sidecar takes."""

STOCK_LIMIT_MS = 30_000
STOCK_QUEUE = 1_000


def enqueue(sidecar: RunningSidecar, *, count: int, times: int, samples: Samples) -> Figures:
    """Medians of so many times: what one in a thousand meets is another guest of this machine now and then.

    `append` and `handover` are the two steps of it: into the queue, and from there to the kernel without waiting.
    Beside the hand-over, a bare non-blocking send of as many bytes to a reader of its own. `alive`, `stopped` and
    `absent` are a life given up as the hooks do it; `dead` is the worse of the last two.
    """
    with stock_send() as stock:
        found = [_once(sidecar, count, samples) for _ in range(times)]
        stock_s = stock.result()
    return {name: round(median(one[name] for one in found), 2) for name in found[0]} | {
        "stock_dead_send_s": round(stock_s, 1)
    }


def _once(sidecar: RunningSidecar, count: int, samples: Samples) -> Figures:
    absent = make_rank(sidecar.socket)
    _given_up(absent, range(FIRST_OF_STOPPED, FIRST_OF_STOPPED + count))  # as `alive` does for `stopped`: tables grow
    absent_s = _given_up(absent, range(UNHEARD * count))  # now: later another rank's thread has much to tell
    with connected_rank(sidecar.socket) as rank, bare_stream() as bare:
        appends_s, hand_overs_s, bare_s, floor_s = _steps(rank, bare, count)
        alive_s = _given_up(rank, range(count), pace_s=PACE_S)
        with sidecar.stopped():
            stopped_s = _given_up(rank, range(FIRST_OF_STOPPED, FIRST_OF_STOPPED + UNHEARD * count))
    keep(samples, append=appends_s, hand_over=hand_overs_s, bare_send=bare_s)
    keep(samples, alive=alive_s, stopped=stopped_s, absent=absent_s)
    return {
        "append_p999_us": us(percentile(appends_s, 0.999)),
        "handover_p50_us": us(percentile(hand_overs_s, 0.5)),
        "handover_p999_us": us(percentile(hand_overs_s, 0.999)),
        "handover_ratio": round(percentile(hand_overs_s, 0.5) / percentile(bare_s, 0.5), 2),
        "bare_p999_us": us(percentile(bare_s, 0.999)),
        "floor_p999_us": us(percentile(floor_s, 0.999)),
        "dead_p999_us": us(max(percentile(stopped_s, 0.999), percentile(absent_s, 0.999))),
        **percentiles("alive", alive_s),
        **percentiles("stopped", stopped_s),
        **percentiles("absent", absent_s),
    }


def _steps(rank: Rank, bare: socket.socket, count: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """The last is a step that makes a list of three: what anything takes on this machine, now and then."""
    fact = RoomConcluded(1, 1, 1, TerminalStatus.FAILED, "Aborted", drained=True, at_s=1.0)
    frame = encode(fact)
    appends_s, hand_overs_s, bare_s, floor_s = [], [], [], []
    for _ in range(count):
        with rank.lock:
            appends_s.append(spent(lambda: rank.emitter.post(fact)))
        hand_overs_s.append(spent(rank.emitter.flush))
        bare_s.append(spent(lambda: bare.send(frame)))
        floor_s.append(spent(lambda: [1, 2, 3]))
        time.sleep(PACE_S)
    return appends_s, hand_overs_s, bare_s, floor_s


def _given_up(rank: Rank, rooms: range, *, pace_s: float = 0.0) -> list[float]:
    took_s = []
    for room in rooms:
        life = rank.open(room)
        took_s.append(spent(lambda life=life: rank.release(life, "Aborted")))
        if pace_s:
            time.sleep(pace_s)
    return took_s


def spent(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


@contextmanager
def stock_send() -> Iterator["Future[float]"]:
    """Seconds of one send as stock's (0.5.18, `_connect`, `_send_multipart_locked`) to an endpoint that refuses, once
    as many are queued there as a socket takes. It waits without the GIL, beside what else is measured."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_stock_send_s)


def _stock_send_s() -> float:
    endpoint, context = refused_port(), zmq.Context()
    push = context.socket(zmq.PUSH)
    push.set(zmq.RECONNECT_IVL, -1)
    push.set(zmq.SNDTIMEO, STOCK_LIMIT_MS)
    push.connect(f"tcp://{endpoint.host}:{endpoint.port}")
    frames, took_s = [b"1", b"0", b"0"], 0.0
    for _ in range(STOCK_QUEUE + 1):
        began = time.monotonic()
        with suppress(zmq.Again):
            push.send_multipart(frames)
        took_s = time.monotonic() - began
    context.destroy(linger=0)
    return took_s


@contextmanager
def bare_stream() -> Iterator[socket.socket]:
    """One end of a stream whose other end is read in another process, as the sidecar's is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    program = "import sys\nprint(flush=True)\nwhile sys.stdin.buffer.raw.read(65536): pass"
    reader = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    reader.stdout.readline()  # it reads from now on
    theirs.close()
    ours.setblocking(False)
    try:
        yield ours
    finally:
        ours.close()
        reader.wait(10.0)
