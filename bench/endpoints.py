"""What living endpoints wait with dead ones beside them."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median

from bench.running import percentile, running_sidecar
from bench.samples import Samples, keep
from bench.sink import Sink, sink
from bench.source import Source
from sidecar.model import DecodeEndpoint

PACE_S = 0.001

Others = AbstractContextManager[list[DecodeEndpoint]]


def head_of_line(*, endpoints: int, notices: int, rounds: int, samples: Samples) -> dict[str, float]:
    """p99 in us from the fact to decode for the living ones of `endpoints`, by how many of them are dead and how; the
    ratio is that with half of them dead to that with none. Each case once in each round."""
    half, tenth = endpoints // 2, endpoints // 10
    p99_s: dict[str, list[float]] = {}
    for _ in range(rounds):
        cases: dict[str, tuple[int, Others]] = {
            "none_dead": (half, alive_endpoints(half)),
            "half_dead": (half, dead_endpoints(half)),
            "half_refused": (half, refused_endpoints(half)),
            "half_frozen": (half, frozen_endpoints(half)),
            "half_silent": (half, silent_endpoints(half)),
            "nine_of_ten_dead": (tenth, dead_endpoints(endpoints - tenth)),
        }
        for name, (living, others) in cases.items():
            waited_s = delays(living, notices, others)
            keep(samples, **{name: waited_s})
            p99_s.setdefault(name, []).append(percentile(waited_s, 0.99))
    medians = {name: median(values) for name, values in p99_s.items()}
    figures: dict[str, float] = {f"{name}_p99_us": round(value * 1e6) for name, value in medians.items()}
    return figures | {"ratio": round(medians["half_dead"] / medians["none_dead"], 2)}


def delays(living: int, notices: int, others: Others) -> list[float]:
    """Of every notice to a living endpoint: all must come."""
    with ExitStack() as stack:
        sidecar = stack.enter_context(running_sidecar())
        decode = stack.enter_context(sink(living))
        beside = stack.enter_context(others)
        source = stack.enter_context(Source(sidecar.socket))
        warm = source.open(decode.addresses, living)
        decode.expect(living)
        source.write(source.endings(warm))
        decode.heard()
        return paced(source, decode, beside, notices)


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
    """A third of each kind of dead."""
    third = count // 3
    with (
        frozen_endpoints(third) as frozen,
        refused_endpoints(third) as refused,
        silent_endpoints(count - 2 * third) as silent,
    ):
        yield [*frozen, *refused, *silent]


@contextmanager
def refused_endpoints(count: int) -> Iterator[list[DecodeEndpoint]]:
    yield [refused_port() for _ in range(count)]


@contextmanager
def frozen_endpoints(count: int) -> Iterator[list[DecodeEndpoint]]:
    """Of a stopped process."""
    with sink(count, first=20_000) as frozen:
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            yield frozen.addresses
        finally:
            frozen.process.send_signal(signal.SIGCONT)


@contextmanager
def silent_endpoints(count: int) -> Iterator[list[DecodeEndpoint]]:
    """Listeners that take no more connections."""
    with ExitStack() as held:
        yield [full_listener(held) for _ in range(count)]


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
