"""A real systemd, as the init of namespaces of its own, over a copy-on-write view of this machine's files.

Nothing that it or its units write is left, or seen by anybody else. Of this machine's units it starts none. Its folders
for temporary files are its own: an overlay whose lower layer is being written to may fail.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.deploy.system import ensure
from tests.pair.paths import REPO

LIMIT_S = 60.0

NAMESPACES = "--pid --fork --mount --cgroup --uts --ipc --kill-child"

BOOT = """
set -eu
top={top} root={top}/root
mount -t tmpfs tmpfs $top
mkdir $top/upper $top/work $root
mount -t overlay overlay -o lowerdir=/,upperdir=$top/upper,workdir=$top/work $root
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t tmpfs tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=1777 tmpfs $root/var/tmp
mount --rbind /dev $root/dev
cd $root
rm -rf etc/systemd/system/*.wants lib/systemd/system/*.wants
: > etc/fstab
mkdir -p opt/pd-sidecar/bin opt/pd-sidecar/python opt/pd-sidecar/site opt/pd-sidecar/source
mkdir -p opt/sglang/bin
mount --bind {python} opt/pd-sidecar/python
mount --bind {site} opt/pd-sidecar/site
mount --bind {repo} opt/pd-sidecar/source
cp {programs}/pd-sidecar opt/pd-sidecar/bin/pd-sidecar
cp {programs}/python opt/sglang/bin/python
grep -q ^sglang: etc/passwd || chroot . useradd --system sglang
chroot . sh -euc {install}
cp -r {etc}/. etc/
printf '[Unit]\\nAfter=%s\\n' '{units_kept}' > etc/systemd/system/nothing.target
exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test \
  /lib/systemd/systemd --system --unit=nothing.target --log-target=null
"""

PROGRAM = """#!/bin/sh
export LD_LIBRARY_PATH=/opt/pd-sidecar/python/lib PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=/opt/pd-sidecar/source:/opt/pd-sidecar/site
exec /opt/pd-sidecar/python/bin/{python} {arguments} "$@"
"""


class Systemd:
    def __init__(self, init: int) -> None:
        self.init = init
        self.root = Path(f"/proc/{init}/root")

    def run(self, *command: str, check: bool = True) -> str:
        inside = ("nsenter", f"--target={self.init}", "--mount", "--pid", "--cgroup", "--root", "--wd=/")
        ended = subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL
        )
        assert not check or ended.returncode == 0, f"{shlex.join(command)}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def ctl(self, *arguments: str, check: bool = True) -> None:
        self.run("systemctl", "--no-ask-password", *arguments, check=check)

    def shown(self, unit: str, *names: str) -> dict[str, str]:
        out = self.run("systemctl", "show", unit, "--property", ",".join(names))
        return dict(line.split("=", 1) for line in out.splitlines())

    def until(self, unit: str, claim: Callable[[dict[str, str]], bool], *names: str) -> dict[str, str]:
        deadline = time.monotonic() + LIMIT_S
        while not claim(shown := self.shown(unit, *names)):
            assert time.monotonic() < deadline, f"{unit}: {shown}"
            time.sleep(0.05)
        return shown


@contextlib.contextmanager
def booted(etc: Path, *, engine: str, known: Sequence[str]) -> Iterator[Systemd]:
    """`etc` is laid over its /etc; `engine` is the Python program that stands in for sglang. What became of the `known`
    units is remembered when they have ended.
    """
    ensure("systemd-analyze", package="systemd")
    with _cgroup() as cgroup, tempfile.TemporaryDirectory(prefix="pds-") as top, tempfile.TemporaryDirectory() as bin_:
        _write_programs(Path(bin_), engine)
        script = BOOT.format(
            top=top,
            python=sys.base_prefix,
            site=Path(pytest.__file__).resolve().parents[1],
            repo=REPO,
            install=shlex.quote("\n".join(["cd /opt/pd-sidecar/source", *installing()])),
            etc=etc,
            programs=bin_,
            units_kept=" ".join(known),
        )
        with _namespaces(script, cgroup) as first:
            yield Systemd(first)


def installing() -> list[str]:
    """The commands of the guide that put the files in their places, as they stand there."""
    guide = (REPO / "deploy" / "README.md").read_text()
    (block,) = (text.split("```")[0] for text in guide.split("```sh\n") if "systemd-sysusers" in text.split("```")[0])
    return [line for line in block.splitlines() if line.startswith(("install ", "systemd-"))]


def _write_programs(folder: Path, engine: str) -> None:
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for name, arguments in (("pd-sidecar", "-P -m sidecar"), ("python", f"-c {shlex.quote(engine)}")):
        (folder / name).write_text(PROGRAM.format(python=python, arguments=arguments))
        (folder / name).chmod(0o755)


@contextlib.contextmanager
def _cgroup() -> Iterator[Path]:
    """Of its own, so that the units' cgroups go with it."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    try:
        top = next(Path(mount[1]) for mount in mounts if mount[2] == "cgroup2")
        made = Path(tempfile.mkdtemp(prefix="pds-", dir=top))
    except (StopIteration, OSError) as error:
        pytest.skip(f"no cgroup for a systemd of our own: {error!r}")
    try:
        yield made
    finally:
        _remove(made)


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    for folder, _, _ in os.walk(cgroup, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:  # its last processes are still going
                assert time.monotonic() < deadline
                time.sleep(0.02)


@contextlib.contextmanager
def _namespaces(script: str, cgroup: Path) -> Iterator[int]:
    """The pid of the first process in them, once systemd answers."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can boot a systemd of its own")
    enter = f"echo $$ > {cgroup}/cgroup.procs; exec setpriv --pdeathsig KILL unshare {NAMESPACES} sh -c"
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["sh", "-c", f"{enter} {shlex.quote(script)}"], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            yield _first_process(process, said.fileno())
        finally:
            for child in _children(process.pid):
                os.kill(child, signal.SIGKILL)
            process.kill()
            process.wait(LIMIT_S)


def _first_process(process: "subprocess.Popen[bytes]", said: int) -> int:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        for child in _children(process.pid):
            if Path(f"/proc/{child}/root/run/systemd/private").exists():
                return child
        time.sleep(0.02)
    text = os.pread(said, 65_536, 0).decode(errors="replace")
    if "Operation not permitted" in text or "permission denied" in text.lower():
        pytest.skip(f"no namespaces for a systemd of our own: {text.strip()}")
    raise AssertionError(f"systemd did not come up: {text}")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
