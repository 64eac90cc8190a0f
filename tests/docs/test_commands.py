"""Every command of the docs is executed here, or something else that runs it is named in `elsewhere`."""

import asyncio
import fnmatch
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio

from tests.docs.cases import ROOM
from tests.docs.elsewhere import BY_HAND, CI, ELSEWHERE, RUN_HERE
from tests.docs.markdown import Block, Page, commands, output
from tests.docs.pages import pages
from tests.pair.paths import REPO
from tests.pair.ports import free_port
from tests.shell.conftest import place  # noqa: F401 - a fixture
from tests.shell.scene import Rank, decode
from tests.shell.test_process import sidecar

COMMAND_LANGUAGES = ("sh", "console")
OTHER_LANGUAGES = ("", "python", "toml", "yaml", "json", "ini", "text", "promql", "dockerfile", "mermaid")
TYPED = re.compile(
    r"^\s*(\$ |(sudo|make|pip|pd-sidecar|kubectl|systemctl|docker|curl|python3?|git|helm) )", re.MULTILINE
)
"""How what people type begins: not in a block that nobody executes."""

NOT_QUITE_OURS = {"pd-sidecar doctor": (0, 1)}
"""Exit codes that depend on what is installed here."""

ADMIN_IN_DOCS = "127.0.0.1:9464"


@dataclass(frozen=True)
class Stage:
    """A sidecar that serves, to which a rank has told of ROOM."""

    folder: Path
    admin: str
    pid: int

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}:/usr/bin:/bin"

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        text = command.replace(ADMIN_IN_DOCS, self.admin).replace("ROOM", str(ROOM)).replace("PID", str(self.pid))
        environ = {"PATH": self.path, "HOME": str(self.folder)}
        environ |= {"PD_SIDECAR_ADMIN": self.admin, "PD_SIDECAR_SOCKET": str(self.folder / "s.sock")}
        script = ["bash", "-euo", "pipefail", "-c", text]
        return subprocess.run(
            script, cwd=self.folder, env=environ, capture_output=True, text=True, check=False, timeout=60
        )


@pytest_asyncio.fixture
async def stage(place: Path, tmp_path: Path) -> AsyncIterator[Stage]:  # noqa: F811 - the fixture
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "pd-sidecar"
    shim.write_text(f'#!/bin/sh\nexec env PYTHONPATH={REPO} "{sys.executable}" -m sidecar "$@"\n')
    shim.chmod(0o755)
    admin = f"127.0.0.1:{free_port()}"
    with decode() as waiting:
        async with sidecar(place, "--admin", admin) as process:
            rank = await Rank.join(place)
            rank.handshake(ROOM, waiting.endpoint)
            rank.failed(ROOM)
            await waiting.told()
            await rank.accepted()
            yield Stage(tmp_path, admin, process.pid)
            await rank.leave()


def all_commands() -> list[tuple[Block, str]]:
    blocks = [block for page in pages().values() for block in page.blocks if block.language in COMMAND_LANGUAGES]
    return [(block, command) for block in blocks if not block.mark for command in commands(block)]


def pattern_of(command: str) -> str | None:
    return next((pattern for pattern in ELSEWHERE if fnmatch.fnmatchcase(command, pattern)), None)


def is_run_here(command: str) -> bool:
    """One program, and curl only to the sidecar."""
    program = command.split(maxsplit=1)[0]
    return program in RUN_HERE and not set(command) & set(";&|`$<>") and (program != "curl" or ADMIN_IN_DOCS in command)


def test_a_command_is_executed_or_listed() -> None:
    left_out = [
        f"{block.place}: {command}"
        for block, command in all_commands()
        if pattern_of(command) is None and not is_run_here(command)
    ]
    assert left_out == [], "neither in tests/docs/elsewhere.py nor run by tests/docs"


async def test_what_is_executed_works(stage: Stage) -> None:
    ended: dict[str, subprocess.CompletedProcess[str]] = {}
    failed = []
    for block, command in all_commands():
        if pattern_of(command) is not None or not is_run_here(command):
            continue
        if shutil.which(command.split(maxsplit=1)[0], path=stage.path) is None:
            continue  # a clean machine may be without curl
        if command not in ended:
            ended[command] = await asyncio.to_thread(stage.run, command)
        if ended[command].returncode not in NOT_QUITE_OURS.get(command, (0,)):
            failed.append(f"{block.place}: {command}: {ended[command]}")
        elif block.language == "console" and (shown := output(block)) and shape(shown) != shape(ended[command].stdout):
            failed.append(f"{block.place}: {command} prints\n{ended[command].stdout}")
    assert failed == []


def shape(text: str) -> str:
    """Without what differs from one run to the next."""
    return re.sub(r"\b[0-9a-f]{8,}\b|\d+(\.\d+)?", "N", re.sub(r" +", " ", text.strip()))


def test_what_is_run_elsewhere_is_run_there() -> None:
    for pattern, proof in ELSEWHERE.items():
        if proof == CI:
            assert re.search(rf"^{re.escape(pattern)}$", (REPO / CI).read_text(), re.MULTILINE), pattern
        elif not proof.startswith(BY_HAND):
            file, _, function = proof.partition("::")
            assert re.search(rf"def {function}\(", (REPO / file).read_text()), f"{pattern}: no {proof}"


def test_every_block_says_what_it_is_in() -> None:
    allowed = {*COMMAND_LANGUAGES, *OTHER_LANGUAGES}
    blocks = [block for page in pages().values() for block in page.blocks]
    assert [f"{block.place}: {block.language!r}" for block in blocks if block.language not in allowed] == []
    plain = [block for block in blocks if block.language in ("", "text")]
    assert [block.place for block in plain if TYPED.search(block.text)] == [], "commands belong into a block of sh"


def test_what_nobody_runs_is_found() -> None:
    page = Page.read(
        "a.md", "```sh\nrm -rf /  # all\nmake test\ncurl \\\n  elsewhere\n```\n```console\n$ pd-sidecar x\nno\n```"
    )
    found = [command for block in page.blocks for command in commands(block)]

    assert found == ["rm -rf /", "make test", "curl elsewhere", "pd-sidecar x"]
    assert [command for command in found if pattern_of(command) is None and not is_run_here(command)] == [
        "rm -rf /",
        "curl elsewhere",
    ]
    assert output(page.blocks[1]) == "no"
