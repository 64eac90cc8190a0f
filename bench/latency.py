"""From the fact on the rank's thread to the frame in decode's hands, beside a PUSH from that thread straight to decode.

The two take turns, so that both meet the same noise. What is found is of several starts: on a few cores each start of
the processes falls into a rhythm of its own.
"""

import time
from collections.abc import Callable, Sequence

import zmq
from msgspec import Struct, field

from bench.running import Endpoints, RunningSidecar, connected_rank, decode_endpoints, percentile, running_sidecar
from bench.samples import Samples, keep
from bench.storm import storm

PACE_S = 0.002
WARM_UP = 5
FRAMES = [b"1", b"0", b"0"]


def latency(*, starts: int, count: int, samples: Samples) -> dict[str, object]:
    """`count` turns after each start. `with_handshake`: the sidecar hears of the end and of the handshake together, as
    when a request is given up within a second. `storm`: the same while another rank's rooms end in bursts.
    """
    alone, in_storm = Ways(), Ways()
    for _ in range(starts):
        with running_sidecar() as sidecar:
            _take_turns(sidecar, count, alone)
            with storm(sidecar.socket):
                _take_turns(sidecar, count, in_storm)
    keep(samples, relayed=alone.relayed_s, direct_push=alone.direct_s)
    keep(samples, relayed_in_storm=in_storm.relayed_s, direct_push_in_storm=in_storm.direct_s)
    return _compared(alone) | {"storm": _compared(in_storm)}


class Ways(Struct):
    """Seconds of each turn, by the way that a notice took."""

    relayed_s: list[float] = field(default_factory=list)
    with_handshake_s: list[float] = field(default_factory=list)
    direct_s: list[float] = field(default_factory=list)


def _take_turns(sidecar: RunningSidecar, count: int, ways: Ways) -> None:
    with connected_rank(sidecar.socket) as rank, decode_endpoints(1) as decode:
        endpoint = decode.addresses[0]
        context = zmq.Context()
        direct = context.socket(zmq.PUSH)
        direct.connect(f"tcp://{endpoint.host}:{endpoint.port}")

        def relayed(room: int, *, is_heard: bool) -> float:
            life = rank.open(room)
            rank.meet(room, endpoint, "s")
            if is_heard:
                rank.emitter.flush()
            time.sleep(PACE_S)
            return _timed(lambda: rank.release(life, "Aborted"), decode)

        taken = Ways()
        for turn in range(count + WARM_UP):
            taken.relayed_s.append(relayed(2 * turn, is_heard=True))
            time.sleep(PACE_S)
            taken.direct_s.append(_timed(lambda: direct.send_multipart(FRAMES), decode))
            taken.with_handshake_s.append(relayed(2 * turn + 1, is_heard=False))
        context.destroy(linger=0)
    ways.relayed_s += taken.relayed_s[WARM_UP:]
    ways.direct_s += taken.direct_s[WARM_UP:]
    ways.with_handshake_s += taken.with_handshake_s[WARM_UP:]


def _timed(send: Callable[[], object], decode: Endpoints) -> float:
    began = time.perf_counter()
    send()
    decode.receive(1)
    return time.perf_counter() - began


def _compared(ways: Ways) -> dict[str, object]:
    direct = _shares(ways.direct_s)
    relayed, with_handshake = (_beside(times_s, direct) for times_s in (ways.relayed_s, ways.with_handshake_s))
    return {"direct_push": direct, "with_handshake": with_handshake, **relayed}


def _beside(times_s: Sequence[float], direct: dict[str, float]) -> dict[str, float]:
    shares = _shares(times_s)
    return shares | {f"{name[:3]}_ratio": round(value / direct[name], 2) for name, value in shares.items()}


def _shares(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{share}_us": round(percentile(seconds, share / 100) * 1e6, 1) for share in (50, 99)}
