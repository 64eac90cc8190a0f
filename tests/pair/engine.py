"""One sglang server: prefill or decode."""

from collections.abc import Mapping
from pathlib import Path

from tests.pair.kept import KeptProcess
from tests.pair.ports import free_ports
from tests.pair.side import Ports, Side, command_line, environment

READY_LIMIT_S = 480.0  # about a minute of computing a server, more beside other work


class Engine(KeptProcess):
    """Launch with `launch`, then `wait_ready`; end with `stop`, whatever happened in between."""

    def __init__(self, side: Side, *, folder: Path, env: Mapping[str, str], name: str = "") -> None:
        self.side = side
        self._env = dict(env)
        http, bootstrap, torch = free_ports(3)
        self.ports = Ports(http, bootstrap, torch)
        name = name or side.role
        super().__init__(name, port=http, ready_path="/health", log=folder / f"{name}.log")

    def launch(self, model: Path) -> None:
        self.start(command_line(self.side, model, self.ports), environment(self.side) | self._env | dict(self.side.env))

    def wait_healthy(self) -> None:
        self.wait_ready(READY_LIMIT_S)

    def scheduler_pids(self) -> list[int]:
        return self.pids("sglang::scheduler")
