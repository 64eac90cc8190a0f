"""What the hooks cost the scheduler's thread, on sglang's own event loop: runs inside the engine's venv and prints
JSON. The plugin and stock take turns, so that both meet the same noise."""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.engine.ranks.company import Fork
from tests.engine.ranks.scene import Scene, staged
from tests.engine.ranks.spec import Admit, Layout
from tests.sglang_hooks.doubles import ScriptedSidecar

IN_FLIGHT = (0, 8, 64)
TOKENS = 2
ROUNDS = 20
LAPS = 200
FIRST_ROOM = 10_000

Pair = dict[str, Scene]
Costs = dict[str, float]


def main() -> None:
    scale = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    fork = Fork()
    try:
        figures = {
            name: measure(fork, layout, rounds=max(2, ROUNDS // scale))
            for name, layout in (("one_rank", Layout(tp=1)), ("tp_2", Layout(tp=2)))
        }
    finally:
        fork.close()
    print(json.dumps(figures))


def measure(fork: Fork, layout: Layout, *, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="figures") as folder, ExitStack() as stack:
        socket = Path(folder, "s")
        stack.enter_context(ScriptedSidecar(socket))
        pair = {
            name: stack.enter_context(
                staged(fork, Path(folder), layout, plugin=name == "plugin", sidecar=str(socket), limit_s=60.0)
            )
            for name in ("stock", "plugin")
        }
        return {
            "iteration": {str(count): iteration(pair, count, rounds=rounds) for count in IN_FLIGHT},
            "abort": {
                "in flight": each_abort(pair, in_flight),
                "in the bootstrap queue": each_abort(pair, in_bootstrap_queue),
            },
            "chunk": chunk(pair, rounds=rounds),
            "handshake": handshake(pair),
        }


def iteration(pair: Pair, count: int, *, rounds: int) -> Costs:
    """One turn of the event loop with `count` requests in flight, none of them ending."""
    for scene in pair.values():
        in_flight(scene, count)
    laps: dict[str, list[float]] = {name: [] for name in pair}
    for _ in range(rounds):
        for name, scene in pair.items():
            laps[name] += scene.ranks.each("spin", LAPS)[0]
    for scene in pair.values():
        scene.ranks.each("let_go")
        scene.play()
    return compared(laps)


def each_abort(pair: Pair, gather: Callable[[Scene, int], list[str]]) -> Costs:
    """`Scheduler.abort_request` for one request of many."""
    took: dict[str, list[float]] = {name: [] for name in pair}
    rids = {name: gather(scene, IN_FLIGHT[-1]) for name, scene in pair.items()}
    for each in zip(*rids.values(), strict=True):
        for name, rid in zip(pair, each, strict=True):
            took[name].append(pair[name].ranks.each("abort", rid)[0])
    for scene in pair.values():
        scene.ranks.each("let_go")
        scene.play()
    return compared(took)


def chunk(pair: Pair, *, rounds: int) -> Costs:
    """Through `FastQueue`, of a request that is open."""
    took: dict[str, list[float]] = {name: [] for name in pair}
    for scene in pair.values():
        in_bootstrap_queue(scene, 1)
    for _ in range(rounds):
        for name, scene in pair.items():
            took[name] += scene.ranks.each("chunks", rooms(scene)[-1], LAPS)[0]
    drop_all(pair)
    return compared(took)


def handshake(pair: Pair) -> Costs:
    """From the socket to stock's hands, of requests that are open."""
    took: dict[str, list[float]] = {}
    pages = np.arange(TOKENS)
    for name, scene in pair.items():
        in_bootstrap_queue(scene, IN_FLIGHT[-1])
        messages = [scene.decode.ranks[0].metadata(room, pages) for room in rooms(scene)[-IN_FLIGHT[-1] :]]
        took[name] = scene.ranks[0].handshakes(messages)
    drop_all(pair)
    return compared(took)


def drop_all(pair: Pair) -> None:
    for scene in pair.values():
        for number in range(scene.admitted):
            scene.ranks.each("abort", f"r{number}.")
        scene.play()


def in_flight(scene: Scene, count: int) -> list[str]:
    scene.ranks.each("hold")
    rids = in_bootstrap_queue(scene, count)
    for room in rooms(scene)[-count:] if count else ():
        scene.decode.shake(room, TOKENS)
    while len(scene.inflight()) < count:
        scene.ranks.iterate()
    scene.ranks.iterate(times=2)
    for room in rooms(scene):
        if room in scene.decode.pages:
            scene.decode.free(room)
    return rids


def in_bootstrap_queue(scene: Scene, count: int) -> list[str]:
    first = scene.admitted
    scene.admitted += count
    messages = [Admit(f"r{number}.", FIRST_ROOM + number, TOKENS) for number in range(first, first + count)]
    scene.ranks.iterate(*messages)
    return [message.rid for message in messages]


def rooms(scene: Scene) -> list[int]:
    return [FIRST_ROOM + number for number in range(scene.admitted)]


def compared(seconds: dict[str, list[float]]) -> Costs:
    medians = {name: statistics.median(values) * 1e6 for name, values in seconds.items()}
    return {
        "stock_us": round(medians["stock"], 1),
        "plugin_us": round(medians["plugin"], 1),
        "added_us": round(medians["plugin"] - medians["stock"], 1),
    }


if __name__ == "__main__":
    main()
