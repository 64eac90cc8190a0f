"""The unit files: systemd's own verdict on them, names that agree with the code, and ExecStart run as the unit says."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest

from sglang_hooks.settings import read_settings
from sidecar.cli.run import run
from sidecar.config import Config
from tests.deploy.system import ensure
from tests.deploy.units import ENGINE, FOLDER, SIDECAR, Unit, read_unit
from tests.pair.paths import REPO
from tests.pair.ports import free_port
from tests.shell.scene import LIMIT_S

INSTANCE = "p0"
UNITS = (f"pd-sidecar@{INSTANCE}.service", f"sglang-prefill@{INSTANCE}.service")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the units are installed as deploy/README.md says. The programs that they start are only there."""
    etc = tmp_path / "etc/systemd/system"
    etc.mkdir(parents=True)
    for unit in (SIDECAR, ENGINE):
        shutil.copy(unit, etc)
        for setting in ("ExecStart", "ExecReload"):
            for value in read_unit(unit, INSTANCE).all(setting):
                program = tmp_path / value.split()[0].lstrip("/")
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text("#!/bin/sh\n")
                program.chmod(0o755)
    units = next(path for path in (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system")) if path.exists())
    shutil.copytree(units, tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path


def analyze(verb: str, *arguments: str, root: Path) -> str:
    command = [ensure("systemd-analyze", package="systemd"), verb, f"--root={root}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_systemd_finds_no_fault(root: Path) -> None:
    ensure("systemd-analyze", package="systemd")

    assert analyze("verify", "--man=no", *UNITS, root=root) == ""


def test_the_exposure_is_ok_and_what_the_guide_says(root: Path) -> None:
    """Each version of systemd counts a little differently: the guide names the one it speaks of."""
    verdict = analyze("security", "--offline=true", "--threshold=20", UNITS[0], root=root)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+) (\w+)", verdict)
    version = re.search(r"systemd (\d+)", analyze("--version", root=root))
    said = re.search(r"exposure level ([\d.]+) (\w+), systemd (\d+)", (REPO / "deploy" / "README.md").read_text())

    assert found, verdict
    assert version
    assert said
    assert said[3] != version[1] or said.groups()[:2] == found.groups()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to root")
def test_users_and_folders_are_made(root: Path) -> None:
    """Of a machine that has none of them. The group is the one that the unit gives its socket to."""
    ensure("systemd-sysusers", package="systemd")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for tool, file in (("systemd-sysusers", "sysusers.conf"), ("systemd-tmpfiles", "tmpfiles.conf")):
        create = ["--create"] if tool == "systemd-tmpfiles" else []
        subprocess.run([tool, f"--root={root}", *create, FOLDER / file], check=True, capture_output=True, timeout=60)
    unit = read_unit(SIDECAR, INSTANCE)
    names = {line.split(":")[0] for line in (root / "etc/passwd").read_text().splitlines()}
    groups = {line.split(":")[0] for line in (root / "etc/group").read_text().splitlines()}

    assert unit.one("User") in names
    assert unit.one("Group") in groups
    assert (root / "run" / unit.one("RuntimeDirectory")).parent.is_dir()
    assert Path(unit.one("EnvironmentFile").removeprefix("-")).parent == Path("/etc/pd-sidecar")
    assert (root / "etc/pd-sidecar").is_dir()


def test_engine_and_sidecar_meet_at_one_socket(root: Path) -> None:
    sidecar, engine = read_unit(SIDECAR, INSTANCE), read_unit(ENGINE, INSTANCE)
    read = read_settings(engine.environment)
    place = Path("/run") / sidecar.one("RuntimeDirectory") / "sidecar.sock"

    assert (read.socket, read.embedded, read.disabled) == (str(place), False, False)
    assert sidecar.environment == {"PD_SIDECAR_SOCKET": str(place)}
    assert sidecar.command[1:] == ["run", "--socket-group", sidecar.one("Group")]
    assert engine.one("SupplementaryGroups") == sidecar.one("Group")


def test_it_goes_with_its_engine_and_after_it() -> None:
    sidecar, engine = read_unit(SIDECAR, INSTANCE), read_unit(ENGINE, INSTANCE)

    assert sidecar.one("PartOf") == sidecar.one("Before") == UNITS[1]
    assert UNITS[0] in engine.one("Wants").split()
    assert UNITS[0] in engine.one("After").split()


def test_it_has_time_to_hand_off_what_is_owed() -> None:
    unit = read_unit(SIDECAR, INSTANCE)

    assert float(unit.one("TimeoutStopSec")) >= 2 * Config(socket=Path("/s")).grace_s


def test_the_example_sets_what_there_is() -> None:
    text = (FOLDER / "pd-sidecar.env.example").read_text()
    named = set(re.findall(r"^#?(PD_SIDECAR_\w+)=", text, flags=re.MULTILINE))
    known = {str(option.envvar) for option in run.params if isinstance(option, click.Option) and option.envvar}

    assert named
    assert named <= known


class Systemd:
    """Its end of the notify socket."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(address))

    async def hears(self, line: str) -> list[str]:
        """The lines of the next datagram that has this one. Others may come before it."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                datagram = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
                if line in (lines := datagram.decode().split("\n")):
                    return lines

    def close(self) -> None:
        self._socket.close()


@contextlib.asynccontextmanager
async def started(unit: Unit, place: Path, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """ExecStart in the unit's environment and nothing else, its RuntimeDirectory= being `place.parent`."""
    place.parent.mkdir(mode=int(unit.one("RuntimeDirectoryMode"), 8))
    command = [sys.executable, "-m", "sidecar", *unit.command[1:]]
    watchdog_us = str(int(unit.one("WatchdogSec")) * 1_000_000)
    process = await asyncio.create_subprocess_exec(
        *[str(os.getegid()) if word == unit.one("Group") else word for word in command],
        env={**unit.environment, "PD_SIDECAR_SOCKET": str(place), "WATCHDOG_USEC": watchdog_us, **environ},
        cwd=REPO,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_exec_start_speaks_to_systemd_from_ready_to_stopping(place: Path) -> None:
    """Also where no systemd of our own can be booted (tests/e2e)."""
    unit, systemd = read_unit(SIDECAR, INSTANCE), Systemd(place.parent.parent / "notify")
    admin = f"127.0.0.1:{free_port()}"
    notify = str(place.parent.parent / "notify")
    async with started(unit, place, NOTIFY_SOCKET=notify, PD_SIDECAR_ADMIN=admin, WATCHDOG_USEC="400000") as process:
        assert "STATUS=ranks: 0, notices owed: 0" in await systemd.hears("READY=1")
        await systemd.hears("WATCHDOG=1")
        reload = unit.one("ExecReload").replace("$MAINPID", str(process.pid)).split()
        await (await asyncio.create_subprocess_exec(*reload)).wait()
        await systemd.hears("RELOADING=1")
        await systemd.hears("READY=1")
        process.send_signal(signal.SIGTERM)
        await systemd.hears("STOPPING=1")

        async with asyncio.timeout(LIMIT_S):
            assert await process.wait() == 0
    systemd.close()
