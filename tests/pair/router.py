"""The real sglang router in front of a pair. It makes rooms and rids itself, and retries what failed."""

import os
from pathlib import Path

from tests.pair.engine import Engine
from tests.pair.kept import KeptProcess
from tests.pair.paths import python_of
from tests.pair.ports import free_ports

READY_LIMIT_S = 480.0


class Router(KeptProcess):
    """POST {url}/generate with text and sampling_params only."""

    def __init__(self, folder: Path) -> None:
        port, self._metrics_port = free_ports(2)
        super().__init__("router", port=port, ready_path="/readiness", log=folder / "router.log")

    def launch(self, prefill: Engine, decode: Engine) -> None:
        words = [str(python_of(prefill.side.sglang)), "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        words += ["--prefill", prefill.url, str(prefill.ports.bootstrap), "--decode", decode.url]
        words += ["--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(self._metrics_port)]
        self.start(words, {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")})

    def wait_healthy(self) -> None:
        """It asks both servers first, so wait for those before."""
        self.wait_ready(READY_LIMIT_S)
