"""From the fact on the rank's thread to the frame in decode's hands, beside a PUSH from that thread straight to decode.

The two take turns, so that both meet the same noise. What is found is of several starts: on a few cores each start of
the processes falls into a rhythm of its own.
"""

import time
from collections.abc import Callable, Sequence

import zmq

from bench.running import Endpoints, RunningSidecar, connected_rank, decode_endpoints, percentile, running_sidecar
from bench.samples import Samples, keep
from bench.storm import storm

PACE_S = 0.002
WARM_UP = 5
FRAMES = [b"1", b"0", b"0"]


def latency(*, starts: int, count: int, samples: Samples) -> dict[str, object]:
    """`count` turns after each start. `storm`: the same while another rank's rooms end in bursts."""
    relayed_s, direct_s, in_storm_s, direct_in_storm_s = [], [], [], []
    for _ in range(starts):
        with running_sidecar() as sidecar:
            relayed, direct = _turns(sidecar, count)
            with storm(sidecar.socket):
                in_storm, direct_in_storm = _turns(sidecar, count)
        relayed_s += relayed
        direct_s += direct
        in_storm_s += in_storm
        direct_in_storm_s += direct_in_storm
    keep(samples, relayed=relayed_s, direct_push=direct_s)
    keep(samples, relayed_in_storm=in_storm_s, direct_push_in_storm=direct_in_storm_s)
    return _compared(relayed_s, direct_s) | {"storm": _compared(in_storm_s, direct_in_storm_s)}


def _turns(sidecar: RunningSidecar, count: int) -> tuple[list[float], list[float]]:
    with connected_rank(sidecar.socket) as rank, decode_endpoints(1) as decode:
        endpoint = decode.addresses[0]
        context = zmq.Context()
        direct = context.socket(zmq.PUSH)
        direct.connect(f"tcp://{endpoint.host}:{endpoint.port}")
        relayed_s, direct_s = [], []
        for room in range(count + WARM_UP):
            life = rank.open(room)
            rank.meet(room, endpoint, "s")
            time.sleep(PACE_S)
            relayed_s.append(_timed(lambda life=life: rank.release(life, "Aborted"), decode))
            time.sleep(PACE_S)
            direct_s.append(_timed(lambda: direct.send_multipart(FRAMES), decode))
        context.destroy(linger=0)
    return relayed_s[WARM_UP:], direct_s[WARM_UP:]


def _timed(send: Callable[[], object], decode: Endpoints) -> float:
    began = time.perf_counter()
    send()
    decode.receive(1)
    return time.perf_counter() - began


def _compared(relayed_s: Sequence[float], direct_s: Sequence[float]) -> dict[str, object]:
    relayed, straight = _shares(relayed_s), _shares(direct_s)
    ratios = {f"{share}_ratio": round(relayed[f"{share}_us"] / straight[f"{share}_us"], 2) for share in ("p50", "p99")}
    return {"relayed": relayed, "direct_push": straight, **ratios}


def _shares(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{share}_us": round(percentile(seconds, share / 100) * 1e6, 1) for share in (50, 99)}
