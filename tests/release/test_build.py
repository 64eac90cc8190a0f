"""What is released: the same bytes from any checkout, the two packages and nothing else, one version."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

import pytest

from tests.pair.paths import REPO
from tests.release.tracked import VERSION, tracked_files

LIMIT_S = 120.0
COMMITTED_AT = 1_700_000_000


def build(source: Path, *, umask: int) -> dict[str, bytes]:
    """Wheel and sdist, by the build backend as pip and `make release` call it."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(COMMITTED_AT)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
    subprocess.run(command, cwd=source, env=environ, umask=umask, check=True, timeout=LIMIT_S, capture_output=True)
    return {path.name: path.read_bytes() for path in (source / "dist").iterdir()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is tracked, as it is in the working tree, with one file too many."""
    place = tmp_path_factory.mktemp("checkout") / "here"
    for name in tracked_files():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, place / name)
    (place / "notes.txt").write_text("not ours to release")
    return place


@pytest.fixture(scope="module")
def built(checkout: Path) -> dict[str, bytes]:
    return build(checkout, umask=0o022)


@pytest.fixture(scope="module")
def wheel(built: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    [name] = [name for name in built if name.endswith(".whl")]
    path = tmp_path_factory.mktemp("wheel") / name
    path.write_bytes(built[name])
    return zipfile.ZipFile(path)


def test_from_the_sdist_elsewhere_come_the_same_bytes(built: dict[str, bytes], checkout: Path, tmp_path: Path) -> None:
    """Another folder, other times of the files, another umask, and no git."""
    [sdist] = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [elsewhere] = tmp_path.iterdir()
    for path in elsewhere.rglob("*"):
        os.utime(path)

    assert build(elsewhere, umask=0o077) == built


def test_the_wheel_holds_both_packages_typed_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    wanted = {name for name in tracked_files() if name.startswith(("sidecar/", "sglang_hooks/"))}

    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {"sidecar/py.typed", "sglang_hooks/py.typed"} <= wanted


def test_the_sdist_holds_what_a_newcomer_needs_and_no_stray_file(built: dict[str, bytes], checkout: Path) -> None:
    [sdist] = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}

    assert {"README.md", "LICENSE", "Makefile", "docs/operations.md", "tests/core/test_room.py"} <= names
    assert "notes.txt" not in names


def test_the_version_is_said_in_one_place(wheel: zipfile.ZipFile) -> None:
    said = Parser().parsestr(wheel.read(f"pd_sidecar-{VERSION}.dist-info/METADATA").decode())
    assert said["Version"] == VERSION
    spelt = [f"pd{dash}sidecar{between}{VERSION}" for dash in "-_" for between in ("-", "==", " ", ":")]
    for name in tracked_files():
        if name == "CHANGELOG.md" or name.startswith(("tests/fuzz/corpus/", "deploy/")):
            continue  # tests/deploy compares the tags of images with it
        text = (REPO / name).read_text(encoding="utf-8", errors="replace")
        assert not [words for words in spelt if words in text], f"{name} repeats the version"


def test_the_base_asks_for_nothing_that_sglang_has_not(wheel: zipfile.ZipFile) -> None:
    said = Parser().parsestr(wheel.read(f"pd_sidecar-{VERSION}.dist-info/METADATA").decode())
    base = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]

    assert [line.split(">")[0] for line in base] == ["msgspec"]
    assert set(said.get_all("Provides-Extra", [])) >= {"service", "otel", "dev"}


def test_sglang_and_the_shell_find_it(wheel: zipfile.ZipFile) -> None:
    points = ConfigParser()
    points.read_string(wheel.read(f"pd_sidecar-{VERSION}.dist-info/entry_points.txt").decode())

    assert dict(points["sglang.srt.plugins"]) == {"pd_sidecar": "sglang_hooks:register"}
    assert dict(points["console_scripts"]) == {"pd-sidecar": "sidecar.__main__:main"}
