"""Links lead somewhere; what is named in the text exists."""

import posixpath
import re

import click

from sidecar.cli import cli
from tests.docs.markdown import Page, slug
from tests.docs.pages import pages
from tests.pair.paths import REPO
from tests.release.tracked import tracked_files


def broken(page: Page, others: dict[str, Page], files: set[str]) -> list[str]:
    folders = {posixpath.dirname(name) for name in files}
    found = []
    for place, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page.file), path)) if path else page.file
        if name not in files and not any(folder == name or folder.startswith(f"{name}/") for folder in folders):
            found.append(f"{place}: {target}: no such file")
        elif anchor and (name not in others or anchor not in others[name].anchors()):
            found.append(f"{place}: {target}: no such heading")
    return found


def test_every_link_leads_somewhere() -> None:
    known, files = pages(), set(tracked_files())
    assert [line for page in known.values() for line in broken(page, known, files)] == []


def test_a_broken_link_is_found() -> None:
    files = {"a.md", "docs/b.md"}
    b = Page.read("docs/b.md", "# Who may come in?\n")
    text = "[1](docs/b.md#who-may-come-in) [2](docs/b.md#nobody) [3](c.md) [4](docs) `[5](d.md)`\n```\n[6](e.md)\n```"
    a = Page.read("a.md", text)

    assert broken(a, {"a.md": a, "docs/b.md": b}, files) == [
        "a.md:1: docs/b.md#nobody: no such heading",
        "a.md:1: c.md: no such file",
    ]
    assert slug("`pd-sidecar trace`: why?") == "pd-sidecar-trace-why"


def test_what_the_text_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    subcommands = set(cli.list_commands(click.Context(cli)))
    unknown = []
    for page in pages().values():
        for place, code in page.inline_code():
            if (made := re.match(r"make ([a-z0-9]+)", code)) and made[1] not in targets:
                unknown.append(f"{place}: {code}: no such target")
            if (asked := re.match(r"pd-sidecar ([a-z]+)", code)) and asked[1] not in subcommands:
                unknown.append(f"{place}: {code}: no such command")
    assert unknown == []


def test_every_variable_that_the_text_names_is_read_somewhere() -> None:
    sources = [name for name in tracked_files() if name.endswith((".py", "Makefile", ".sh", ".yaml", ".toml"))]
    known = set().union(*(_variables((REPO / name).read_text(encoding="utf-8")) for name in sources))
    known |= {f"PD_SIDECAR_{param.name.upper()}" for param in cli.commands["run"].params if param.name}
    said = set().union(*(_variables((REPO / name).read_text(encoding="utf-8")) for name in pages()))

    assert {name for name in said - known if not name.endswith("_")} == set()


def _variables(text: str) -> set[str]:
    return set(re.findall(r"\bPD_SIDECAR_[A-Z_]+", text))
