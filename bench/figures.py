"""The figures. Each function takes its measure and its baseline in turns, so that both meet the same noise."""

import time
from collections.abc import Callable, Sequence

import zmq

from bench.running import (
    Endpoints,
    RunningSidecar,
    connected_rank,
    decode_endpoints,
    make_rank,
    running_sidecar,
    wait_until,
)
from sglang_hooks.rank import Rank
from sidecar.model import DecodeEndpoint

PACE_S = 0.002
Figures = dict[str, float]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


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
        "ratio": {name: round(relayed[name] / straight[name], 2) for name in relayed},
    }


def timed(send: Callable[[], object], decode: Endpoints) -> float:
    began = time.perf_counter()
    send()
    decode.receive(1)
    return time.perf_counter() - began


def fact_on_the_caller(sidecar: RunningSidecar, *, count: int) -> dict[str, object]:
    """What one end costs the scheduler's thread: table, fact and the non-blocking try."""
    absent = make_rank(sidecar.socket)
    with connected_rank(sidecar.socket) as rank:
        alive = per_end(rank, count)
        with sidecar.stopped():
            stopped = per_end(rank, count, first_room=count)
    return {"sidecar_alive": alive, "sidecar_stopped": stopped, "sidecar_absent": per_end(absent, count)}


def per_end(rank: Rank, count: int, *, first_room: int = 0) -> Figures:
    spent_s = []
    for room in range(first_room, first_room + count):
        life = rank.open(room)
        began = time.perf_counter()
        rank.release(life, "Aborted")
        spent_s.append(time.perf_counter() - began)
        time.sleep(0)
    return latencies(spent_s) | {"p99.9_us": round(percentile(spent_s, 0.999) * 1e6, 1)}


def notices_per_cpu_second(*, endpoints: int, rounds: int, burst: int) -> dict[str, object]:
    """Notices for one CPU second of the sidecar, beside the same frames from a bare PUSH loop, for one CPU second
    of it."""
    relayed, bare = [], []
    with running_sidecar() as sidecar, connected_rank(sidecar.socket) as rank, decode_endpoints(endpoints) as decode:
        room = 0
        warm_up(rank, decode)
        for _ in range(rounds):
            lives = []
            for _ in range(burst):
                life = rank.open(room)
                rank.meet(room, decode.addresses[room % endpoints], "s")
                lives.append(life)
                room += 1
            wait_until(lambda: rank.emitter.traffic.accepted_seq >= rank.last_seq, "the handshakes are not taken")
            before_s = sidecar.cpu_s()
            for life in lives:
                rank.release(life, "Aborted")
            decode.receive(burst)
            relayed.append(burst / max(sidecar.cpu_s() - before_s, 0.01))
            bare.append(bare_rate(decode, burst))
    best, base = percentile(relayed, 0.5), percentile(bare, 0.5)
    return {"relayed": round(best), "bare_push": round(base), "ratio": round(best / base, 2)}


def warm_up(rank: Rank, decode: Endpoints) -> None:
    """Connects to every endpoint."""
    for number, address in enumerate(decode.addresses):
        room = 2**40 + number
        life = rank.open(room)
        rank.meet(room, address, "s")
        rank.release(life, "Aborted")
    decode.receive(len(decode.addresses))


def bare_rate(decode: Endpoints, burst: int) -> float:
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 8192)
    pushes = [connected_push(context, address) for address in decode.addresses]
    for push in pushes:
        push.send_multipart([b"0", b"0", b"0"])
    decode.receive(len(pushes))
    before_s = time.process_time()
    for number in range(burst):
        pushes[number % len(pushes)].send_multipart([b"%d" % number, b"0", b"0"], zmq.NOBLOCK)
    spent_s = time.process_time() - before_s
    decode.receive(burst)
    context.destroy(linger=0)
    return burst / spent_s


def connected_push(context: "zmq.Context[zmq.Socket[bytes]]", address: DecodeEndpoint) -> "zmq.Socket[bytes]":
    push = context.socket(zmq.PUSH)
    push.set(zmq.SNDHWM, 0)
    push.connect(f"tcp://{address.host}:{address.port}")
    return push


def footprint() -> Figures:
    starts_s = []
    for _ in range(5):
        with running_sidecar() as sidecar:
            starts_s.append(sidecar.ready_s)
            rss_mb = sidecar.rss_mb()
    return {"start_to_ready_s": round(percentile(starts_s, 0.5), 3), "rss_idle_mb": round(rss_mb, 1)}
