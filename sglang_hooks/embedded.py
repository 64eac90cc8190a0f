"""Starts a sidecar when nobody serves the socket: detached, so that it outlives the rank and is nobody's child
here.

sglang's `kill_process_tree` ends all children of a server and their children; the sidecar must be able to tell
decode just then.
"""

import fcntl
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sglang_hooks.settings import Settings

NEEDED_MODULES = ("uvloop", "zmq", "aiohttp", "click", "prometheus_client", "structlog")
START_LIMIT_S = 20.0
EXIT_TAKEN = 4
"""The sidecar's exit code when another one serves the socket: as good as our own."""

PAUSE_FIRST_S = 1.0
PAUSE_LAST_S = 60.0
UNWANTED_VARIABLES = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH")


class EmbeddedStart:
    """Tries to start a sidecar at `socket`, with a growing pause between tries. One process of a host tries at a
    time."""

    def __init__(self, *, socket: str, idle_exit_s: float) -> None:
        self._socket = Path(socket)
        self._idle_exit_s = idle_exit_s
        self._next_try_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    def __call__(self) -> str | None:
        """Answers why no sidecar could be started; None when one serves now, or another process is starting one."""
        now = time.monotonic()
        if now < self._next_try_s:
            return None
        self._next_try_s = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_LAST_S)
        missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
        if missing:
            return f"none can be started: {', '.join(missing)} missing, install pd-sidecar[service]"
        try:
            return self._start_alone()
        except OSError as error:
            return f"none can be started: {error}"

    def _start_alone(self) -> str | None:
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{self._socket}.starting", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._start()
        except BlockingIOError:
            return None
        finally:
            os.close(lock)

    def _start(self) -> str | None:
        # -P: a directory named sidecar in the engine's working directory must not be taken for the package.
        command = [sys.executable, "-P", "-m", "sidecar", "run", "--detach", "--socket", str(self._socket)]
        command += ["--idle-exit-s", str(self._idle_exit_s)]
        if not os.environ.get("PD_SIDECAR_LOG_FILE"):
            command += ["--log-file", f"{self._socket}.log"]
        try:
            ended = subprocess.run(  # noqa: S603 - our own interpreter and module
                command,
                env=clean_environment(os.environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=START_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"none can be started: no answer from {sys.executable} within {START_LIMIT_S:.0f} s"
        if ended.returncode not in (0, EXIT_TAKEN):
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            return f"none can be started: {said[-1] if said else f'exit code {ended.returncode}'}"
        self._pause_s = PAUSE_FIRST_S
        return None


def on_absent(settings: Settings) -> Callable[[], str | None]:
    """What a process of the engine does when nobody serves the socket: `EmbeddedStart`, or only to say why not."""
    if not settings.embedded:
        return lambda: "PD_SIDECAR_EMBEDDED=0, so none is started"
    return EmbeddedStart(socket=settings.socket, idle_exit_s=settings.idle_exit_s)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment without what would load engine parts into the sidecar."""
    return {name: value for name, value in environ.items() if name not in UNWANTED_VARIABLES}
