"""What `make release` makes, installed as users install it: into a venv of its own, and into an engine's."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.pair.paths import REPO, venv_dir
from tests.pair.venvs import ensure_venv
from tests.release.tracked import VERSION

LIMIT_S = 600.0
DIST = REPO / "build" / "dist"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def run(*command: str | Path, codes: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PD_SIDECAR_", "PYTHON"))}
    ended = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode in codes, f"{command}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel() -> Path:
    run("make", "release", f"PYTHON={sys.executable}", cwd=REPO)
    [made] = DIST.glob("*.whl")
    return made


def test_the_release_is_what_is_built_from_the_commit(wheel: Path) -> None:
    assert wheel.name == f"pd_sidecar-{VERSION}-py3-none-any.whl"
    sums = dict(reversed(line.split()) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    files = [path for path in DIST.iterdir() if path.name != "SHA256SUMS"]
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    text = (DIST / "pd-sidecar.cdx.json").read_text()
    bill = json.loads(text)
    parts = {part["name"]: part for part in bill["components"]}

    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "pd-sidecar"
    assert {"msgspec", "aiohttp", "pyzmq", "uvloop", "structlog", "opentelemetry-sdk"} <= set(parts)
    for name, part in parts.items():
        assert part["purl"] == f"pkg:pypi/{normalized(name)}@{part['version']}"
    assert not {"torch", "sglang", "pip"} & set(parts)
    assert "file:" not in text, "no path of the machine that built it"


def test_the_wheel_serves_from_a_venv_of_its_own(wheel: Path) -> None:
    """The one `make release` has made: the wheel with its extras, and no engine."""
    python = REPO / "build" / "release-venv" / "bin" / "python"
    command = python.with_name("pd-sidecar")
    assert run(command, "--version").strip() == f"pd-sidecar, version {VERSION}"
    assert "warn  sglang: not installed here" in run(command, "doctor")
    found = run(
        python,
        "-c",
        "import sys, sidecar.app, sglang_hooks; from importlib.metadata import entry_points;"
        "[point] = entry_points(group='sglang.srt.plugins'); print(point.load().__module__, point.name);"
        "print(sorted({'torch', 'sglang'} & set(sys.modules)))",
        cwd=REPO / "build",
    )
    assert found.split("\n")[:2] == ["sglang_hooks pd_sidecar", "[]"]


def test_the_base_works_without_the_service_and_goes_without_a_trace(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    before = run(python, *PIP, "list", "--format=freeze")
    run(python, *PIP, "install", "--quiet", wheel)
    after = set(run(python, *PIP, "list", "--format=freeze").split()) - set(before.split())
    assert {line.partition("==")[0] for line in after} == {"pd-sidecar", "msgspec"}

    assert run(python, "-m", "sglang_hooks.doctor", codes=(1,))
    loaded = "import sglang_hooks, sys; print(sorted({'torch', 'zmq', 'click'} & set(sys.modules)))"
    assert run(python, "-c", loaded) == "[]\n"
    run(python, *PIP, "uninstall", "--quiet", "--yes", "pd-sidecar")
    left = {path.name for path in (tmp_path / "venv").rglob("*") if "sidecar" in path.name or "sglang" in path.name}
    assert left == set()


@pytest.fixture(scope="module")
def engine_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a venv in which pip finds every package of an engine's, without this project and what came with it.

    Only what pip reads is there, so nothing that it does can reach the engine's own.
    """
    engine = venv_dir("0.5.18")
    if not (engine / "engine.stamp").exists():
        ensure_venv("0.5.18")
    [packages] = (engine / "lib").glob("python3*/site-packages")
    home = tmp_path_factory.mktemp("engine-like") / "venv"
    run(sys.executable, "-m", "venv", home)
    [place] = (home / "lib").glob("python3*/site-packages")
    installed = {each.name: each for each in map(_Installed, packages.glob("*.dist-info"))}
    ours = {name for name in installed if name.startswith("pd-sidecar")}
    needed = set().union(*(each.needs for name, each in installed.items() if name not in ours))
    came_along = installed["pd-sidecar"].needs_with_extras - needed
    traced = {name for name in installed if name.startswith("opentelemetry-")}  # `test_traces.py` was here before
    for name in installed.keys() - ours - came_along - traced - {"pip", "setuptools"}:
        shutil.copytree(installed[name].folder, place / installed[name].folder.name)
    return home / "bin" / "python"


class _Installed:
    """One distribution, from its metadata. `needs` are those it always asks for."""

    def __init__(self, folder: Path) -> None:
        said = Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"), headersonly=True)
        lines = said.get_all("Requires-Dist", [])
        self.folder = folder
        self.name = normalized(said["Name"])
        self.needs = {_name_in(line) for line in lines if "extra ==" not in line}
        self.needs_with_extras = {_name_in(line) for line in lines}


def _name_in(requirement: str) -> str:
    return normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def normalized(name: str) -> str:
    """As PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def would_install(python: Path, wanted: str) -> dict[str, str]:
    """Name and version of all that pip would add, change or replace."""
    report = run(python, *PIP, "install", "--quiet", "--dry-run", "--report", "-", wanted)
    said = json.loads(report[report.index("{") :])
    return {one["metadata"]["name"]: one["metadata"]["version"] for one in said["install"]}


def test_into_an_engine_the_base_adds_itself_and_nothing_else(wheel: Path, engine_like: Path) -> None:
    before = set(run(engine_like, *PIP, "list", "--format=freeze").splitlines())
    assert any(line.startswith("sglang==0.5.18") for line in before)
    assert would_install(engine_like, str(wheel)) == {"pd-sidecar": VERSION}

    run(engine_like, *PIP, "install", "--quiet", wheel)
    after = set(run(engine_like, *PIP, "list", "--format=freeze").splitlines())
    assert after - before == {f"pd-sidecar=={VERSION}"}
    assert before <= after


def test_the_service_adds_one_package_to_an_engine(wheel: Path, engine_like: Path) -> None:
    assert set(would_install(engine_like, f"{wheel}[service]")) - {"pd-sidecar"} == {"structlog"}


def test_tracing_adds_only_what_sglangs_own_extra_does(wheel: Path, engine_like: Path) -> None:
    added = set(would_install(engine_like, f"{wheel}[service,otel]")) - {"pd-sidecar", "structlog"}

    assert {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"} <= added
    present = {line.partition("==")[0] for line in run(engine_like, *PIP, "list", "--format=freeze").splitlines()}
    assert not added & present, "nothing that an engine has is replaced"


def test_the_wheel_carries_no_test(wheel: Path) -> None:
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tests/")]
