"""How many notices the sidecar gets done with one CPU second of its whole process, beside a bare PUSH loop's."""

import time
from collections.abc import Callable
from statistics import median

import zmq

from bench.running import running_sidecar, wait_until
from bench.sink import Sink, sink
from bench.source import Source
from sidecar.model import DecodeEndpoint

SETTLE_AFTER_S = 0.25
"""Shorter than in production, so that settling is measured and idle heartbeats are not."""

LAST, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def throughput(*, endpoints: int, rounds: int, burst: int) -> dict[str, float]:
    """`to_socket` counts from the fact to the last notice at decode; `whole` until all are settled and reported so.
    `bare` is `send_multipart`; `lean` sends the same three frames one by one with plain numbers for flags.
    """
    spent: dict[str, list[float]] = {"to_socket": [], "whole": [], "bare": [], "lean": []}
    with (
        running_sidecar("--settle-after-s", str(SETTLE_AFTER_S)) as sidecar,
        sink(endpoints) as decode,
        Source(sidecar.socket) as source,
    ):
        relay(source, decode, max(endpoints, 64))  # connects
        for _ in range(rounds):
            rooms = source.open(decode.addresses, burst)
            endings, settled = source.endings(rooms), source.settled
            before_s = sidecar.cpu_s()
            decode.expect(burst)
            source.write(endings)
            assert len(decode.heard()) == burst
            spent["to_socket"].append(sidecar.cpu_s() - before_s)
            wait_until(lambda settled=settled: source.settled >= settled + burst, "not all settle")
            spent["whole"].append(sidecar.cpu_s() - before_s)
            for name, send in (("bare", send_multipart), ("lean", send_one_by_one)):
                spent[name].append(bare_loop(decode, burst, send))
    us = {name: round(median(times_s) / burst * 1e6, 2) for name, times_s in spent.items()}
    return {f"{name}_us": value for name, value in us.items()} | {
        "ratio": round(us["bare"] / us["whole"], 2),
        "ratio_to_socket": round(us["bare"] / us["to_socket"], 2),
        "ratio_to_lean_loop": round(us["lean"] / us["whole"], 2),
    }


def relay(source: Source, decode: Sink, count: int) -> None:
    rooms = source.open(decode.addresses, count)
    decode.expect(count)
    source.write(source.endings(rooms))
    assert len(decode.heard()) == count


def send_multipart(push: "zmq.Socket[bytes]", room: bytes) -> None:
    push.send_multipart([room, b"0", b"0"], zmq.NOBLOCK)


def send_one_by_one(push: "zmq.Socket[bytes]", room: bytes) -> None:
    push.send(room, MORE)
    push.send(b"0", MORE)
    push.send(b"0", LAST)


def bare_loop(decode: Sink, burst: int, send: "Callable[[zmq.Socket[bytes], bytes], None]") -> float:
    """CPU seconds of this process, its I/O thread included."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 8192)
    pushes = [connected_push(context, address) for address in decode.addresses]
    decode.expect(len(pushes))
    for number, push in enumerate(pushes):
        send_multipart(push, b"%d" % number)
    decode.heard()
    decode.expect(burst)
    before_s = time.process_time()
    for number in range(burst):
        send(pushes[number % len(pushes)], b"%d" % number)
    decode.heard()
    spent_s = time.process_time() - before_s
    context.destroy(linger=0)
    return spent_s


def connected_push(context: "zmq.Context[zmq.Socket[bytes]]", address: DecodeEndpoint) -> "zmq.Socket[bytes]":
    push = context.socket(zmq.PUSH)
    push.set(zmq.SNDHWM, 0)
    push.connect(f"tcp://{address.host}:{address.port}")
    return push
