"""`python -m tests.fuzz [--seconds N] [TARGET ...]`: coverage-guided fuzzing (atheris) of each target in turn.

What it finds worth keeping stays in build/fuzz/TARGET and is where the next run goes on; an input that breaks a
target is in build/fuzz/broken. To have `make test` replay one, copy it to tests/fuzz/corpus.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "fuzz"
SEEDS = Path(__file__).parent / "corpus"
INPUT_LIMIT_BYTES = 4096
INPUT_LIMIT_S = 10
MEMORY_LIMIT_MB = 2048


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    given = parser.parse_args()
    if given.one:
        return _fuzz(given.targets[0], given.seconds)
    return _fuzz_all(given.targets, given.seconds)


def _fuzz_all(wanted: list[str], seconds: int) -> int:
    """Each in a process of its own: libFuzzer ends the one it runs in."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - a child instruments it first

    names = wanted or list(TARGETS)
    broken = []
    for name in names:
        begin = time.monotonic()
        command = [sys.executable, "-m", "tests.fuzz", "--one", "--seconds", str(max(1, seconds // len(names))), name]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        kept = len(list((KEPT / name).iterdir()))
        print(f"{name}: {'held' if code == 0 else 'BROKEN'} for {time.monotonic() - begin:.0f} s, {kept} inputs kept")
        broken += [name] * (code != 0)
    return 1 if broken else 0


def _fuzz(name: str, seconds: int) -> int:
    import atheris  # noqa: PLC0415 - an extra of its own

    with atheris.instrument_imports(include=["sidecar", "sglang_hooks"]):
        from tests.fuzz.targets import TARGETS, seeds_of  # noqa: PLC0415

    kept, broken = KEPT / name, KEPT / "broken"
    for folder in (kept, broken):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_LIMIT_BYTES}",
        f"-timeout={INPUT_LIMIT_S}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-artifact_prefix={broken}/{name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(kept), str(SEEDS / seeds_of(name))], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
