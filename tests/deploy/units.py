"""Unit files, read as systemd reads them as far as these tests need it."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.pair.paths import REPO

FOLDER = REPO / "deploy" / "systemd"
SIDECAR = FOLDER / "pd-sidecar@.service"
ENGINE = FOLDER / "sglang-prefill@.service"


@dataclass(frozen=True)
class Unit:
    """`settings` in the order of the file, %i filled in."""

    settings: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.settings if key == name]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for value in self.all("Environment") for pair in shlex.split(value)]
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def command(self) -> list[str]:
        return shlex.split(self.one("ExecStart"))


def read_unit(path: Path, instance: str) -> Unit:
    found = []
    for raw in path.read_text().splitlines():
        line = raw.strip()
        if line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            found.append((name, value.replace("%i", instance)))
    return Unit(tuple(found))
