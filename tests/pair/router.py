"""The real sglang router in front of a pair. It makes rooms and rids itself, and retries what failed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.pair.kept import KeptProcess
from tests.pair.paths import python_of
from tests.pair.ports import free_ports
from tests.pair.progress import step
from tests.pair.running import Pair

READY_LIMIT_S = 90.0


@contextmanager
def running_router(pair: Pair) -> Iterator[KeptProcess]:
    """POST {url}/generate with text and sampling_params only."""
    port, metrics = free_ports(2)
    router = KeptProcess("router", port=port, ready_path="/readiness", log=pair.folder / "router.log")
    words = [str(python_of(pair.spec.prefill.sglang)), "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    words += ["--prefill", pair.prefill.url, str(pair.prefill.ports.bootstrap), "--decode", pair.decode.url]
    words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        with step("router"):
            router.start(words, env)
            router.wait_ready(READY_LIMIT_S)
        yield router
    finally:
        router.stop()
