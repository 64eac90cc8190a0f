"""Debian's prometheus and promtool: those of this machine, or the package's, unpacked where this project builds.

Unpacked and not installed: the package would also start a server of its own.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from tests.pair.paths import build_dir
from tests.pair.progress import run_logged, step

PACKAGE = "prometheus"
WANTED = ("./usr/bin/prometheus", "./usr/bin/promtool")
STEP_LIMIT_S = 300


def tool(name: str) -> Path:
    """`prometheus` or `promtool`."""
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    unpacked = build_dir() / PACKAGE / name
    if not unpacked.exists():
        _unpack()
    return unpacked


def _unpack() -> None:
    """Whoever else unpacks meanwhile unpacks the same."""
    (build_dir() / PACKAGE).mkdir(parents=True, exist_ok=True)
    with step(f"system package {PACKAGE}, unpacked"), tempfile.TemporaryDirectory(dir=build_dir()) as name:
        folder = Path(name)
        command: list[str | Path] = ["dpkg-deb", "--fsys-tarfile", _download(folder)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as members,
        ):
            for member in members:
                if member.name in WANTED:
                    _place(members.extractfile(member), folder / Path(member.name).name)
    missing = [name for name in WANTED if not (build_dir() / PACKAGE / Path(name).name).exists()]
    if missing:
        raise RuntimeError(f"the system package {PACKAGE} has no {' and no '.join(missing)}")


def _place(read: IO[bytes] | None, written: Path) -> None:
    assert read is not None
    with read, written.open("wb") as to:
        shutil.copyfileobj(read, to)
    written.chmod(0o755)
    written.replace(build_dir() / PACKAGE / written.name)


def _download(folder: Path) -> Path:
    """apt's lists may be missing or too old for what the registry has now."""
    log = build_dir() / "logs" / "apt.log"
    log.parent.mkdir(exist_ok=True)
    download = ["apt-get", "download", PACKAGE]
    try:
        run_logged(download, log=log, limit_s=STEP_LIMIT_S, cwd=folder)
    except RuntimeError:
        if os.geteuid() != 0:
            raise RuntimeError(f"promtool is missing: install the system package {PACKAGE} first") from None
        run_logged(["apt-get", "update"], log=log, limit_s=STEP_LIMIT_S)
        run_logged(download, log=log, limit_s=STEP_LIMIT_S, cwd=folder)
    return next(folder.glob("*.deb"))
