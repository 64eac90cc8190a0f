"""The flags of the service, each with its environment variable and its key in the file, and `pd-sidecar config`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sidecar.config import LOG_LEVELS, RELOADABLE, Config, checked, default_socket, parse_admin, parse_group, read_file
from sidecar.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

_ORIGINS = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}


def _use_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Eager: what the file says is the default of the flags that are read after it."""
    if path is not None:
        ctx.default_map = read_file(path)
    return path


_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--config", {"type": Path, "is_eager": True, "callback": _use_file, "help": "TOML; flag and environment win."}),
    ("--socket", {"type": Path, "help": "Unix socket for the ranks."}),
    ("--socket-group", {"type": parse_group, "metavar": "GROUP", "help": "Admit this group too: a name or a gid."}),
    ("--admin", {"default": "127.0.0.1:9464", "help": "HOST:PORT, or off."}),
    ("--log-level", {"default": "info", "help": f"One of {', '.join(LOG_LEVELS)}."}),
    ("--log-file", {"type": Path, "help": "Bounded; default stderr."}),
    ("--record-limit", {"type": int, "default": 4096, "help": "Terminal records kept, 1 to 1000000."}),
    ("--settle-after-s", {"type": float, "default": 5.0, "help": "A hand-off settles on a connection up so long."}),
    ("--idle-exit-s", {"type": float, "default": 0.0, "help": "End after so long without ranks and debts; 0: never."}),
    ("--idle-close-s", {"type": float, "default": 600.0, "help": "Close connections to decode unused for so long."}),
    ("--grace-s", {"type": float, "default": 5.0, "help": "When told to end, deliver what is owed for so long."}),
    ("--decode-sglang", {"help": "Oldest version that decode engines run, e.g. 0.5.20."}),
    ("--otlp-endpoint", {"help": "Collector for spans, http://HOST:4318; default none."}),
    ("--scheduling", {"default": "batch", "help": "batch: never interrupts a thread at work on its core; or normal."}),
)


def variable(flag: str) -> str:
    return "PD_SIDECAR_" + flag.removeprefix("--").replace("-", "_").upper()


def with_settings(command: Command) -> Command:
    """Every flag can also be set by the environment variable named in its help."""
    for flag, attributes in reversed(_OPTIONS):
        command = click.option(flag, envvar=variable(flag), show_envvar=True, **attributes)(command)
    return command


def effective(ctx: click.Context) -> Config:
    """Raises ConfigError."""
    given = {name: ctx.params[name] for name in Config.__struct_fields__}
    given["socket"] = given["socket"] or default_socket()
    given["admin"] = parse_admin(given["admin"])
    return checked(Config(**given))


def reread(command: click.Command, arguments: list[str]) -> Config:
    """The settings as that command line gives them now: the file may have changed. Raises ConfigError."""
    try:
        with command.make_context(command.name, list(arguments)) as ctx:
            return effective(ctx)
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from error


@click.command()
@with_settings
@click.option("--json", "as_json", is_flag=True, help="One object, by setting.")
@click.pass_context
def config(ctx: click.Context, /, as_json: bool, **_: Any) -> None:
    """Print the settings that `run` would use here, where each comes from, and what it takes to change it.

    Exit code: 0 they can work, 2 one cannot.
    """
    effective(ctx)
    rows = {name: _row(ctx, name) for name in Config.__struct_fields__}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(len(str(row["value"])) for row in rows.values())
    for name, row in rows.items():
        shown = "-" if row["value"] is None else row["value"]
        when = "SIGHUP " if row["reloads"] else "restart"
        click.echo(f"{name:<15} {shown:<{width}}  {row['origin']:<11}  {when}  {row['flag']}, {row['variable']}")


def _row(ctx: click.Context, name: str) -> dict[str, str | int | float | None]:
    value = ctx.params[name]
    if name == "socket" and value is None:
        value = default_socket()
    flag = "--" + name.replace("_", "-")
    return {
        "value": str(value) if isinstance(value, Path) else value,
        "origin": _ORIGINS.get(ctx.get_parameter_source(name) or ParameterSource.DEFAULT, "default"),
        "reloads": name in RELOADABLE,
        "flag": flag,
        "variable": variable(flag),
    }
