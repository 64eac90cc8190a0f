"""What servers stand on: a folder for logs, the shim's event log and controls, a socket for their sidecar."""

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.pair.embedded import end_sidecar
from tests.pair.paths import build_dir
from tests.pair.ports import free_ports

SIDECAR_IDLE_EXIT_S = 3


@dataclass(frozen=True)
class Ground:
    folder: Path
    socket: Path
    admin_port: int

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def control(self) -> Path:
        return self.folder / "control"

    @property
    def env(self) -> dict[str, str]:
        """For each server that stands on it."""
        return {
            "PD_SHIM_EVENTS": str(self.events),
            "PD_SHIM_CONTROL": str(self.control),
            "PD_SIDECAR_SOCKET": str(self.socket),
            "PD_SIDECAR_ADMIN": f"127.0.0.1:{self.admin_port}",
            "PD_SIDECAR_IDLE_EXIT_S": str(SIDECAR_IDLE_EXIT_S),
            "PD_SIDECAR_LOG_FILE": str(self.folder / "sidecar.log"),
        }


def lay_ground(name: str, stack: ExitStack) -> Ground:
    """The stack ends the sidecar, after the servers if these are put on it later."""
    folder = build_dir() / "logs" / f"{name}-{time.strftime('%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6}"
    short = Path(tempfile.mkdtemp(prefix="pds-"))  # the path of a unix socket has 107 bytes
    stack.callback(shutil.rmtree, short, ignore_errors=True)
    (admin_port,) = free_ports(1)
    ground = Ground(folder, short / "s", admin_port)
    ground.control.mkdir(parents=True)
    stack.callback(end_sidecar, ground.socket, limit_s=SIDECAR_IDLE_EXIT_S + 7)
    return ground
