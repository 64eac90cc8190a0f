"""A running pair: two engines, their sidecar's socket, the shim's events and controls. `running_pair` is the way in."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pair.embedded import end_sidecar, sidecar_pid
from tests.pair.engine import Engine
from tests.pair.events import EventLog
from tests.pair.paths import build_dir
from tests.pair.ports import free_ports
from tests.pair.progress import say, step
from tests.pair.router import Router
from tests.pair.side import PairSpec
from tests.pair.venvs import ensure_venv, nobody_installs
from tests.pair.weights import ensure_model

SIDECAR_IDLE_EXIT_S = 3


@dataclass(frozen=True)
class Pair:
    """`router` is there if the spec asks for it. `servers` are those that this pair launched and will end."""

    spec: PairSpec
    folder: Path
    prefill: Engine
    decode: Engine
    router: Router | None
    servers: tuple[Engine | Router, ...]
    events: EventLog
    control: Path
    socket: Path
    admin_port: int

    def sidecar_pid(self) -> int | None:
        """Id of the sidecar process; None while nobody listens."""
        return sidecar_pid(self.socket)

    def kill(self) -> None:
        """SIGKILL to its servers: a crash."""
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        """Ends its servers. Also done at the end of `running_pair`; twice does no harm."""
        for server in self.servers:
            server.let_go()
        for server in self.servers:
            server.stop()

    @contextmanager
    def held_transfers(self) -> Iterator[None]:
        """KV writes that begin in here wait for its end (at most 120 s)."""
        with self._switch("hold"):
            yield

    @contextmanager
    def failing_transfers(self) -> Iterator[None]:
        with self._switch("fail"):
            yield

    @contextmanager
    def _switch(self, name: str) -> Iterator[None]:
        switch = self.control / name
        switch.touch()
        try:
            yield
        finally:
            switch.unlink()


@contextmanager
def running_pair(
    spec: PairSpec,
    name: str = "pair",
    *,
    decode: Engine | None = None,
    laid_out: Callable[[Pair], None] = lambda _: None,
) -> Iterator[Pair]:
    """Builds what is missing, launches both servers, waits until they serve, and ends all of it on the way out.

    Given the decode server of another pair, it launches only a prefill server to go with it. `laid_out` hears of the
    pair before anything is launched.
    """
    versions = {spec.prefill.sglang, spec.decode.sglang}
    for version in versions:
        ensure_venv(version, nixl=spec.prefill.backend == "nixl")
    model = ensure_model(spec.prefill.sglang)
    with ExitStack() as stack:
        pair = _lay_out(spec, name, decode, stack)
        stack.callback(pair.stop)
        laid_out(pair)
        with nobody_installs(versions), step(f"{name}: launching (logs in {pair.folder})"):
            for server in pair.servers:
                if isinstance(server, Router):
                    server.launch(pair.prefill, pair.decode)
                else:
                    server.launch(model)
            for server in pair.servers:
                server.wait_healthy()
        try:
            yield pair
        finally:
            say(f"{name}: ending it")


def _lay_out(spec: PairSpec, name: str, other: Engine | None, stack: ExitStack) -> Pair:
    folder = build_dir() / "logs" / f"{name}-{time.strftime('%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6}"
    control = folder / "control"
    control.mkdir(parents=True)
    short = Path(tempfile.mkdtemp(prefix="pds-"))  # the path of a unix socket has 107 bytes
    stack.callback(shutil.rmtree, short, ignore_errors=True)
    socket = short / "s"
    stack.callback(end_sidecar, socket, limit_s=SIDECAR_IDLE_EXIT_S + 7)
    (admin_port,) = free_ports(1)
    env = {
        "PD_SHIM_EVENTS": str(folder / "events.jsonl"),
        "PD_SHIM_CONTROL": str(control),
        "PD_SIDECAR_SOCKET": str(socket),
        "PD_SIDECAR_ADMIN": f"127.0.0.1:{admin_port}",
        "PD_SIDECAR_IDLE_EXIT_S": str(SIDECAR_IDLE_EXIT_S),
        "PD_SIDECAR_LOG_FILE": str(folder / "sidecar.log"),
    }
    prefill = Engine(spec.prefill, folder=folder, env=env)
    decode = other or Engine(spec.decode, folder=folder, env=env)
    router = Router(folder) if spec.router else None
    return Pair(
        spec=spec,
        folder=folder,
        prefill=prefill,
        decode=decode,
        router=router,
        servers=tuple(one for one in (prefill, decode, router) if one is not None and one is not other),
        events=EventLog(folder / "events.jsonl"),
        control=control,
        socket=socket,
        admin_port=admin_port,
    )
