"""A running pair: two engines, their sidecar's socket, the shim's events and controls. `running_pair` is the way in."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pair.embedded import await_sidecar, sidecar_pid
from tests.pair.engine import Engine
from tests.pair.events import EventLog
from tests.pair.ground import Ground, lay_ground
from tests.pair.progress import say, step
from tests.pair.router import Router
from tests.pair.side import PairSpec
from tests.pair.venvs import ensure_venv, nobody_installs
from tests.pair.weights import ensure_model


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
            if spec.prefill.starts_sidecar:
                await_sidecar(pair.socket)
        try:
            yield pair
        finally:
            say(f"{name}: ending it")


def _lay_out(spec: PairSpec, name: str, other: Engine | None, stack: ExitStack) -> Pair:
    ground = lay_ground(name, stack)
    prefill = Engine(spec.prefill, folder=ground.folder, env=ground.env)
    decode = other or Engine(spec.decode, folder=ground.folder, env=ground.env)
    router = Router(ground.folder) if spec.router else None
    servers = tuple(one for one in (prefill, decode, router) if one is not None and one is not other)
    return pair_on(ground, spec, prefill, decode, router=router, servers=servers)


def pair_on(
    ground: Ground,
    spec: PairSpec,
    prefill: Engine,
    decode: Engine,
    *,
    router: Router | None = None,
    servers: tuple[Engine | Router, ...] = (),
) -> Pair:
    """Two servers as a pair. `ground` is what prefill stands on."""
    return Pair(
        spec=spec,
        folder=ground.folder,
        prefill=prefill,
        decode=decode,
        router=router,
        servers=servers,
        events=EventLog(ground.events),
        control=ground.control,
        socket=ground.socket,
        admin_port=ground.admin_port,
    )
