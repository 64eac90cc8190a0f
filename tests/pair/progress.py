"""Long work says on the terminal what it is doing and for how long."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_BEGAN = time.monotonic()
REPORT_EVERY_S = 10.0


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    began = time.monotonic()
    say(f"{text} ...")
    yield
    say(f"{text}: done in {time.monotonic() - began:.1f} s")


def tail(path: Path, lines: int = 40) -> str:
    if not path.exists():
        return f"(no {path.name})"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def run_logged(command: Sequence[str | Path], *, log: Path, limit_s: float, cwd: Path | None = None) -> None:
    """Run a quiet command; its output is shown only if it fails or passes its limit."""
    began = time.monotonic()
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=cwd) as process:
        try:
            while process.poll() is None:
                _wait_a_while(process)
                spent = time.monotonic() - began
                if spent > limit_s:
                    raise TimeoutError(f"{command[0]} passed its limit of {limit_s:.0f} s:\n{tail(log)}")
                if process.returncode is None:
                    say(f"  ... {spent:.0f} s")
        finally:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\nended with {process.returncode}:\n{tail(log)}")


def _wait_a_while(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=REPORT_EVERY_S)
    except subprocess.TimeoutExpired:
        return
