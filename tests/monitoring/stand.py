"""A sidecar under load, engines as far as Prometheus sees them, and a Prometheus that scrapes both."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.running import running_sidecar
from tests.monitoring.load import load
from tests.monitoring.scraping import Prometheus, prometheus
from tests.pair.ports import free_port

FLAGS = ("--record-limit", "64", "--settle-after-s", "1", "--idle-close-s", "20")
"""So few records that some are evicted, and times so short that one sees what comes of them."""

ENGINE = (
    "# TYPE sglang:num_running_reqs gauge\n"
    'sglang:num_running_reqs{engine_type="prefill",model_name="m",pp_rank="0",tp_rank="0"} 1.0\n'
)
"""What a prefill engine of 0.5.18 to 0.5.23 serves, of this one metric."""


class _Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a scrape that has waited too long
            self.wfile.write(ENGINE.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def engine(host: str) -> Iterator[str]:
    """Answers its address."""
    server = http.server.ThreadingHTTPServer((host, 0), _Engine)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@contextmanager
def scraped_sidecar(folder: Path) -> Iterator[Prometheus]:
    """With an engine beside it, and an engine without a sidecar at 127.0.0.2."""
    admin = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        sidecar = stack.enter_context(running_sidecar(*FLAGS, admin=admin))
        engines = [stack.enter_context(engine(host)) for host in ("127.0.0.1", "127.0.0.2")]
        stack.enter_context(load(sidecar.socket))
        yield stack.enter_context(prometheus(folder, {"pd-sidecar": [admin], "sglang": engines}))
