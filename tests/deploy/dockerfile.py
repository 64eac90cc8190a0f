"""Dockerfiles, read and played: each stage in a root of its own, a copy-on-write view of this machine, whose Python
stands in for the base image's.

No image comes of it. It shows that the commands work, in the order and as the user they stand there.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONTAINER_ENV = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

ROOT = """
mkdir -p {root} {root}.upper {root}.work {root}.python {root}.pywork
mount -t overlay overlay -o lowerdir=/,upperdir={root}.upper,workdir={root}.work {root}
mount -t overlay overlay -o lowerdir={python},upperdir={root}.python,workdir={root}.pywork {root}/usr/local
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
chmod 755 {root}/root
rm -rf {root}/opt/pd-sidecar*
"""
"""The interpreter's own path may be below /root, and its shared library there is looked for by everybody."""


@dataclass
class Stage:
    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def listed(self, instruction: str) -> list[str]:
        """Of one in exec form."""
        found = json.loads(self.last(instruction))
        assert isinstance(found, list)
        return found

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for argument in self.all("ENV") for pair in shlex.split(argument)]
        return dict(pair.split("=", 1) for pair in pairs)


def read_dockerfile(path: Path) -> list[Stage]:
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for instruction, argument in _instructions(path.read_text()):
        if instruction == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], argument).partition(" AS ")
            stages.append(Stage(name or str(len(stages)), base))
        elif instruction == "ARG" and not stages:
            arguments.update([argument.split("=", 1)])
        else:
            stages[-1].steps.append((instruction, argument))
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        instruction, _, argument = line.strip().partition(" ")
        if instruction:
            yield instruction, argument.strip()


def script_of(stages: Sequence[Stage], *, top: Path, context: Path, python: Path) -> Iterator[str]:
    """What a shell in a mount namespace of its own does to play them, as one stage's root after the other in `top`."""
    for stage in stages:
        root = top / stage.name
        yield ROOT.format(root=root, python=python)
        folder, environ = "/", dict(CONTAINER_ENV)
        for instruction, argument in stage.steps:
            if instruction == "RUN":
                yield in_root(root, ["sh", "-ec", argument], environ=environ, folder=folder)
            elif instruction == "COPY":
                yield _copy(argument, top=top, context=context, to=root, folder=folder)
            elif instruction == "WORKDIR":
                folder = argument
                yield f"mkdir -p {root}{folder}"
            elif instruction == "ENV":
                environ |= dict(pair.split("=", 1) for pair in shlex.split(argument))


def in_root(
    root: Path, command: Sequence[str], *, environ: Mapping[str, str], folder: str = "/", user: str = "0:0"
) -> str:
    inside = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *command])
    return f"chroot --userspec={user} --groups= {root} sh -c {shlex.quote(f'cd {folder}; exec {inside}')}"


def _copy(argument: str, *, top: Path, context: Path, to: Path, folder: str) -> str:
    words = shlex.split(argument)
    if words[0].startswith("--from="):
        context = top / words.pop(0).removeprefix("--from=")
    *sources, target = words
    place = f"{to}{target if target.startswith('/') else f'{folder}/{target}'}"
    copies = []
    for source in sources:
        found = f"{context}/{source.lstrip('/')}"
        copies.append(f"if [ -d {found} ]; then mkdir -p {place}; cp -r {found}/. {place}; else cp {found} {place}; fi")
    return "\n".join(copies)
