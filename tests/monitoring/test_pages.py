"""Pages made from code are up to date, and leave nothing out. `python -m tests.monitoring` writes them."""

import re
import sys
from pathlib import Path

import click
import pytest

from sglang_hooks.settings import read_settings
from sidecar.cli import cli
from sidecar.cli.run import run
from sidecar.config import Config
from sidecar.errors import ConfigError
from tests.monitoring import __main__ as generator
from tests.monitoring.rules import REPO, RUNBOOKS
from tests.monitoring.setting_page import PLUGIN_VARIABLES, Asked

COMMAND = re.compile(r"`(?:kubectl exec .* -- )?pd-sidecar ([a-z]+)((?: --?[a-z-]+)*)")
OTHER_VALUES = ("0", "7", "1000", "1", "/elsewhere", "all")


def test_what_is_made_from_code_is_up_to_date() -> None:
    assert [str(path.relative_to(REPO)) for path in generator.stale()] == []


def test_a_stale_page_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(generator, "MADE", {page: lambda: "new"})
    monkeypatch.setattr(generator, "REPO", tmp_path)

    def ended(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["monitoring", *arguments])
        with pytest.raises(SystemExit) as end:
            generator.main()
        return end.value.code

    assert ended("--check") == 1
    assert not page.exists()
    assert ended() == 0
    assert page.read_text() == "new"
    assert ended("--check") == 0


def test_every_setting_of_the_service_is_a_flag_with_words() -> None:
    options = [option for option in run.params if isinstance(option, click.Option)]

    assert set(Config.__struct_fields__) <= {option.name for option in options}
    assert [option.name for option in options if not option.help] == []


def test_every_variable_that_the_plugin_reads_is_on_the_page() -> None:
    asked = Asked({})
    read_settings(asked)

    assert set(asked.names) == set(PLUGIN_VARIABLES)


@pytest.mark.parametrize("name", PLUGIN_VARIABLES)
def test_a_variable_sets_what_its_row_says(name: str) -> None:
    """Another value of it changes that field and no other."""
    usual = read_settings({})
    changed = set()
    for value in OTHER_VALUES:
        try:
            found = read_settings({name: value})
        except ConfigError:
            continue
        changed |= {field for field in vars(usual) if getattr(found, field) != getattr(usual, field)}

    assert changed == {PLUGIN_VARIABLES[name].field}


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_runbook_names_commands_that_there_are(page: Path) -> None:
    context = click.Context(cli)
    for name, flags in COMMAND.findall(page.read_text()):
        command = cli.get_command(context, name)
        assert command is not None, name
        known = {flag for option in command.params for flag in option.opts} | {"--json"}
        assert set(flags.split()) <= known, f"{name} {flags}"
