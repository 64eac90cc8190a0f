"""The figures. Each function takes its measure and its baseline in turns, so that both meet the same noise."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from bench.running import (
    Endpoints,
    RunningSidecar,
    connected_rank,
    decode_endpoints,
    make_rank,
    percentile,
    running_sidecar,
)
from sidecar.model import RoomConcluded, TerminalStatus
from sidecar.wire.ingress import encode

PACE_S = 0.002
Figures = dict[str, float]


def latencies(seconds: Sequence[float]) -> Figures:
    return {f"p{share}_us": round(percentile(seconds, share / 100) * 1e6, 1) for share in (50, 99)}


def fact_to_decode(sidecar: RunningSidecar, *, count: int) -> dict[str, object]:
    """From the fact on the rank's thread to the frame in decode's hands, beside a PUSH from that thread straight to
    decode."""
    with connected_rank(sidecar.socket) as rank, decode_endpoints(1) as decode:
        endpoint = decode.addresses[0]
        context = zmq.Context()
        direct = context.socket(zmq.PUSH)
        direct.connect(f"tcp://{endpoint.host}:{endpoint.port}")
        frames = [b"1", b"0", b"0"]
        relayed_s, direct_s = [], []
        for room in range(count):
            life = rank.open(room)
            rank.meet(room, endpoint, "s")
            time.sleep(PACE_S)
            relayed_s.append(timed(lambda life=life: rank.release(life, "Aborted"), decode))
            time.sleep(PACE_S)
            direct_s.append(timed(lambda: direct.send_multipart(frames), decode))
        context.destroy(linger=0)
    relayed, straight = latencies(relayed_s[5:]), latencies(direct_s[5:])
    return {
        "relayed": relayed,
        "direct_push": straight,
        "p50_ratio": round(relayed["p50_us"] / straight["p50_us"], 2),
        "p99_ratio": round(relayed["p99_us"] / straight["p99_us"], 2),
    }


def timed(send: Callable[[], object], decode: Endpoints) -> float:
    began = time.perf_counter()
    send()
    decode.receive(1)
    return time.perf_counter() - began


def enqueue(sidecar: RunningSidecar, *, count: int) -> Figures:
    """What a fact costs the thread that has it: into the queue, and from there to the kernel without waiting. Beside
    the hand-over, a bare non-blocking send of as many bytes to a reader of its own.
    """
    absent = make_rank(sidecar.socket)
    with connected_rank(sidecar.socket) as rank, bare_stream() as bare:
        fact = RoomConcluded(1, 1, 1, TerminalStatus.FAILED, "Aborted", drained=True, at_s=1.0)
        frame = encode(fact)
        appends_s, hand_overs_s, bare_s = [], [], []
        for _ in range(count):
            with rank.lock:
                appends_s.append(spent(lambda: rank.emitter.post(fact)))
            hand_overs_s.append(spent(rank.emitter.flush))
            bare_s.append(spent(lambda: bare.send(frame)))
            time.sleep(0.0002)
    dead_s = []
    for room in range(count):
        life = absent.open(room)
        dead_s.append(spent(lambda life=life: absent.release(life, "Aborted")))
    return {
        "append_p999_us": us(percentile(appends_s, 0.999)),
        "handover_p50_us": us(percentile(hand_overs_s, 0.5)),
        "handover_p999_us": us(percentile(hand_overs_s, 0.999)),
        "handover_ratio": round(percentile(hand_overs_s, 0.5) / percentile(bare_s, 0.5), 2),
        "dead_p999_us": us(percentile(dead_s, 0.999)),
    }


def spent(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


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


def footprint() -> Figures:
    starts_s = []
    for _ in range(5):
        with running_sidecar(admin="127.0.0.1:0") as sidecar:
            starts_s.append(sidecar.ready_s)
            rss_mb = sidecar.rss_mb()
    return {"start_s": round(percentile(starts_s, 0.5), 3), "idle_mb": round(rss_mb, 1)}
