"""Servers of several builds side by side. Launching costs most: prefill servers stay, decode servers take turns."""

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.matrix.cells import Build
from tests.pair.embedded import await_sidecar, sidecar_pid
from tests.pair.engine import Engine
from tests.pair.events import EventLog
from tests.pair.ground import Ground, lay_ground
from tests.pair.keeper import send
from tests.pair.progress import step
from tests.pair.running import Pair, pair_on
from tests.pair.side import PairSpec, Role, Side
from tests.pair.venvs import ensure_venv, nobody_installs
from tests.pair.weights import ensure_model

CHUNK = "4096"
TIMEOUT_S = {"mooncake": 12, "nixl": 30}
"""D's waiting timeout. NIXL's engines never sleep: with eight of them on two cores a long prompt takes 20 s."""

SERVER_BYTES = 2.6e9
LEFT_TO_OTHERS_BYTES = 2e9
DECODES_AT_ONCE = 2
PREFILL_POOL = 40_000
DECODE_POOL = 200_000

ROOM_FOR_OTHERS = ("--mem-fraction-static", "0.9")
"""A server takes what the others allocate while it starts for its own; its pool is bounded by its tokens anyway."""


@dataclass(frozen=True)
class Server:
    """Each stands on its own ground: its events and its sidecar are its own."""

    build: Build
    ground: Ground
    engine: Engine
    events: EventLog


def prefills_at_once() -> int:
    """As many as there is memory for, beside the decode servers."""
    free = psutil.virtual_memory().available - LEFT_TO_OTHERS_BYTES
    return max(1, int(free / SERVER_BYTES) - DECODES_AT_ONCE)


def ensure_builds(backend: str, versions: Sequence[str]) -> Path:
    """Builds what is missing; the model that all serve."""
    for version in sorted(set(versions)):
        ensure_venv(version, nixl=backend == "nixl")
    return ensure_model(versions[0])


def lay_out(backend: str, role: Role, wanted: Sequence[Build], stack: ExitStack) -> list[Server]:
    """Servers to be launched; the stack ends them."""
    servers = [_server(backend, role, build, stack) for build in wanted]
    stack.callback(_end, servers)
    return servers


def launch(servers: Sequence[Server], model: Path) -> None:
    names = ", ".join(server.engine.name for server in servers)
    with nobody_installs(server.build.version for server in servers), step(f"launching {names}"):
        for server in servers:
            server.engine.launch(model)
        for server in servers:
            server.engine.wait_healthy()
            if server.engine.side.starts_sidecar:
                await_sidecar(server.ground.socket)


def _server(backend: str, role: Role, build: Build, stack: ExitStack) -> Server:
    name = f"matrix-{backend}-{role}-{build.version}{'-plugin' if build.plugin else ''}"
    ground = lay_ground(name, stack)
    engine = Engine(side(backend, role, build), folder=ground.folder, env=ground.env, name=f"{role} {build.name}")
    return Server(build, ground, engine, EventLog(ground.events))


def side(backend: str, role: Role, build: Build) -> Side:
    chunks = ("--chunked-prefill-size", CHUNK) if role == "prefill" else ()
    return Side(
        role=role,
        sglang=build.version,
        backend=backend,
        plugin=build.plugin,
        timeout_s=TIMEOUT_S[backend],
        max_total_tokens=PREFILL_POOL if role == "prefill" else DECODE_POOL,
        args=("--sleep-on-idle", *ROOM_FOR_OTHERS, *chunks),
    )


def pair_of(prefill: Server, decode: Server) -> Pair:
    spec = PairSpec(prefill.engine.side, decode.engine.side)
    return pair_on(prefill.ground, spec, prefill.engine, decode.engine)


def _end(servers: Sequence[Server]) -> None:
    """At once: a stock server takes ten seconds to end in order, and a sidecar owes what a killed D cannot confirm."""
    for server in servers:
        server.engine.kill()
    for server in servers:
        server.engine.stop()
        if (sidecar := sidecar_pid(server.ground.socket)) is not None:
            send(sidecar, signal.SIGKILL)
