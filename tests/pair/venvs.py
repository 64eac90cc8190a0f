"""Builds and caches one engine venv for each sglang version, and keeps this project and the shim in it up to date."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pair.paths import REPO, SHIM, build_dir, files_hash, python_of, venv_dir
from tests.pair.progress import run_logged, say, step
from tests.pair.recipes import NIXL, RECIPES, TRACING, Recipe

STEP_LIMIT_S = 1800.0
LOCK_LIMIT_S = 3600.0
PROJECT_SOURCES = ("sidecar", "sglang_hooks", "pyproject.toml")


@dataclass(frozen=True)
class Layer:
    """One pip step on top of the engine; done again when `wanted` is not what the stamp says."""

    name: str
    wanted: str
    arguments: tuple[str, ...]


def ensure_venv(version: str, *, nixl: bool = False, tracing: bool = False) -> Path:
    """The python of a venv that has the engine, this project as a wheel would ship it, and the shim."""
    recipe = RECIPES[version]
    layers = _layers(nixl=nixl, tracing=tracing)
    if _is_stale(recipe, layers):
        ensure_libibverbs()
        with _lock(version, fcntl.LOCK_EX):
            _ensure_engine(recipe)
            for layer in layers:
                _ensure_layer(version, layer)
    return python_of(version)


@contextmanager
def nobody_installs(versions: Iterable[str]) -> Iterator[None]:
    """Engines import from their venv while they start: another run must not replace packages meanwhile."""
    with ExitStack() as stack:
        for version in sorted(set(versions)):
            stack.enter_context(_lock(version, fcntl.LOCK_SH))
        yield


def _layers(*, nixl: bool, tracing: bool) -> list[Layer]:
    sources = files_hash([REPO / name for name in PROJECT_SOURCES])
    layers = [
        Layer("shim", files_hash([SHIM]), ("--no-deps", "--force-reinstall", str(SHIM))),
        Layer("pd-sidecar", sources, (f"{REPO}[service]",)),
    ]
    if nixl:
        layers.insert(0, Layer("nixl", " ".join(NIXL), ("--no-deps", *NIXL)))
    if tracing:
        layers.insert(0, Layer("tracing", " ".join(TRACING), TRACING))
    return layers


def _is_stale(recipe: Recipe, layers: Sequence[Layer]) -> bool:
    if _stamp(recipe.version, "engine") != _engine_wanted(recipe):
        return True
    return any(_stamp(recipe.version, layer.name) != layer.wanted for layer in layers)


def _engine_wanted(recipe: Recipe) -> str:
    return hashlib.sha256(f"{sys.version_info[:2]}{recipe.text()}".encode()).hexdigest()


def ensure_libibverbs() -> None:
    """Mooncake's shared library is linked to it."""
    if _has_libibverbs():
        return
    if os.geteuid() != 0:
        raise RuntimeError("libibverbs.so.1 is missing: install the system package libibverbs1 first")
    with step("system package libibverbs1"):
        log = _log("apt")
        run_logged(["apt-get", "update"], log=log, limit_s=300)
        run_logged(["apt-get", "install", "-y", "--no-install-recommends", "libibverbs1"], log=log, limit_s=300)
    if not _has_libibverbs():
        raise RuntimeError("libibverbs1 was installed but libibverbs.so.1 still does not load")


def _has_libibverbs() -> bool:
    # In a process of its own: a failed look-up of this process would be remembered by its dynamic linker.
    probe = "import ctypes; ctypes.CDLL('libibverbs.so.1')"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False, timeout=60).returncode == 0


def _ensure_engine(recipe: Recipe) -> None:
    version, home = recipe.version, venv_dir(recipe.version)
    wanted = _engine_wanted(recipe)
    if _stamp(version, "engine") == wanted:
        return
    with step(f"venv for sglang {version} (about a minute and 2.8 GB)"):
        shutil.rmtree(home, ignore_errors=True)
        run_logged([sys.executable, "-m", "venv", home], log=_log(f"venv-{version}"), limit_s=120)
        for title, arguments in recipe.steps():
            with step(f"  {title}"):
                _pip(version, arguments)
    _write_stamp(version, "engine", wanted)


def _ensure_layer(version: str, layer: Layer) -> None:
    if _stamp(version, layer.name) == layer.wanted:
        return
    with step(f"{layer.name} into the venv of sglang {version}"):
        _pip(version, layer.arguments)
    _write_stamp(version, layer.name, layer.wanted)


def _pip(version: str, arguments: Sequence[str]) -> None:
    command: list[str | Path] = [python_of(version), "-m", "pip", "install", "--no-input", *arguments]
    run_logged(command, log=_log(f"pip-{version}"), limit_s=STEP_LIMIT_S, cwd=build_dir())


def _log(name: str) -> Path:
    folder = build_dir() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def _stamp_path(version: str, name: str) -> Path:
    return venv_dir(version) / f"{name}.stamp"


def _stamp(version: str, name: str) -> str | None:
    path = _stamp_path(version, name)
    return path.read_text() if path.exists() else None


def _write_stamp(version: str, name: str, text: str) -> None:
    _stamp_path(version, name).write_text(text)


@contextmanager
def _lock(version: str, operation: int) -> Iterator[None]:
    path = venv_dir(version).with_name(f"sglang-{version}.lock")  # not with_suffix: 0.5.18 ends in one
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_LIMIT_S
    with path.open("w") as lock:
        told = False
        while not _locked(lock.fileno(), operation):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another run has held {path.name} for {LOCK_LIMIT_S:.0f} s")
            if not told:
                say(f"waiting for another run that installs into, or launches from, the venv of sglang {version}")
                told = True
            time.sleep(0.2)
        yield


def _locked(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
