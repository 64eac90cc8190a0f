"""What a thousand endpoints cost, and what five hundred dead ones cost the living."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from bench.running import percentile, running_sidecar
from bench.sink import Sink, sink
from bench.source import Source
from sidecar.model import DecodeEndpoint

PACE_S = 0.001


def thousand(*, idle_s: float) -> dict[str, float]:
    with running_sidecar() as sidecar, sink(1000) as decode, Source(sidecar.socket) as source:
        empty_mb = sidecar.rss_mb()
        began = time.monotonic()
        rooms = source.open(decode.addresses, 1000)
        decode.expect(1000)
        source.write(source.endings(rooms))
        connected_s = max(decode.heard().values()) - began
        kb = (sidecar.rss_mb() - empty_mb) * 1024 / 1000
        time.sleep(6.0)  # settles
        before_s = sidecar.cpu_s()
        time.sleep(idle_s)
        idle_pct = (sidecar.cpu_s() - before_s) / idle_s * 100
    return {
        "connect_1000_s": round(connected_s, 3),
        "kb_per_endpoint": round(kb, 1),
        "idle_cpu_pct": round(idle_pct, 2),
    }


def dead_half(*, living: int, notices: int, rounds: int) -> dict[str, float]:
    """p99 from the fact to decode for the living ones, with as many dead ones beside them, and with all alive."""
    p99_s: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for is_dead in (False, True):
            p99_s[is_dead].append(percentile(delays(living, notices, is_dead=is_dead), 0.99))
    all_alive, half_dead = median(p99_s[False]), median(p99_s[True])
    return {
        "all_alive_p99_us": round(all_alive * 1e6),
        "half_dead_p99_us": round(half_dead * 1e6),
        "ratio": round(half_dead / all_alive, 2),
    }


def delays(living: int, notices: int, *, is_dead: bool) -> list[float]:
    """Of every notice to a living endpoint: all must come."""
    with ExitStack() as stack:
        sidecar = stack.enter_context(running_sidecar())
        decode = stack.enter_context(sink(living))
        others = stack.enter_context(dead_endpoints(living) if is_dead else alive_endpoints(living))
        source = stack.enter_context(Source(sidecar.socket))
        warm = source.open(decode.addresses, living)
        decode.expect(living)
        source.write(source.endings(warm))
        decode.heard()
        return paced(source, decode, others, notices)


def paced(source: Source, decode: Sink, others: list[DecodeEndpoint], notices: int) -> list[float]:
    rooms, beside = source.open(decode.addresses, notices), source.open(others, notices)
    time.sleep(1.0)  # connections that can be made are made, the others have begun to be refused
    decode.expect(notices)
    sent_at: dict[int, float] = {}
    for room, other in zip(rooms, beside, strict=True):
        source.write(source.endings(range(other, other + 1)))
        ending = source.endings(range(room, room + 1))
        sent_at[room] = time.monotonic()
        source.write(ending)
        time.sleep(PACE_S)
    heard = decode.heard()
    return [heard[room] - at for room, at in sent_at.items()]


@contextmanager
def alive_endpoints(count: int) -> Iterator[list[DecodeEndpoint]]:
    with sink(count, first=10_000) as others:
        others.expect(1_000_000)
        yield others.addresses


@contextmanager
def dead_endpoints(count: int) -> Iterator[list[DecodeEndpoint]]:
    """A third each: refused ports, a stopped process, listeners that take no more connections."""
    third = count // 3
    with sink(third, first=20_000) as frozen, ExitStack() as held:
        frozen.process.send_signal(signal.SIGSTOP)
        refused = [refused_port() for _ in range(third)]
        try:
            yield [*frozen.addresses, *refused, *(full_listener(held) for _ in range(count - 2 * third))]
        finally:
            frozen.process.send_signal(signal.SIGCONT)


def refused_port() -> DecodeEndpoint:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return DecodeEndpoint("127.0.0.1", probe.getsockname()[1])


def full_listener(held: ExitStack) -> DecodeEndpoint:
    """Its backlog is full, so the kernel drops every SYN, as a net does that leads nowhere."""
    listener = held.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(2):
        filler = held.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    return DecodeEndpoint("127.0.0.1", listener.getsockname()[1])
