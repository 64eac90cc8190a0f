"""The command line: `pd-sidecar run`. Every flag can also be set by the environment variable named in its help."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from sidecar.config import Config, checked, default_socket, parse_admin
from sidecar.detach import Caller
from sidecar.errors import ConfigError, SocketTakenError

EXIT_CONFIG = 2
EXIT_TAKEN = 4

_CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="pd-sidecar", prog_name="pd-sidecar")
def cli() -> None:
    """Tells SGLang decode engines what their prefill engine gave up."""


@cli.command()
@click.option("--socket", type=Path, envvar="PD_SIDECAR_SOCKET", show_envvar=True, help="Unix socket for the ranks.")
@click.option(
    "--socket-group", type=int, envvar="PD_SIDECAR_SOCKET_GROUP", show_envvar=True, help="Admit this gid too."
)
@click.option(
    "--admin", default="127.0.0.1:9464", envvar="PD_SIDECAR_ADMIN", show_envvar=True, help="HOST:PORT, or off."
)
@click.option("--log-level", default="info", envvar="PD_SIDECAR_LOG_LEVEL", show_envvar=True)
@click.option("--log-file", type=Path, envvar="PD_SIDECAR_LOG_FILE", show_envvar=True, help="Bounded; default stderr.")
@click.option("--record-limit", type=int, default=4096, envvar="PD_SIDECAR_RECORD_LIMIT", show_envvar=True)
@click.option("--settle-after-s", type=float, default=5.0, envvar="PD_SIDECAR_SETTLE_AFTER_S", show_envvar=True)
@click.option("--idle-exit-s", type=float, default=0.0, envvar="PD_SIDECAR_IDLE_EXIT_S", show_envvar=True)
@click.option("--idle-close-s", type=float, default=600.0, envvar="PD_SIDECAR_IDLE_CLOSE_S", show_envvar=True)
@click.option("--grace-s", type=float, default=5.0, envvar="PD_SIDECAR_GRACE_S", show_envvar=True)
@click.option("--detach", is_flag=True, help="Leave the caller's process tree; return once it is served.")
@click.pass_obj
def run(caller: Caller, /, **flags: Any) -> None:
    """Serve the prefill ranks of this host.

    Exit code: 0 nothing owed, 2 a setting that cannot work, 3 something is still owed, 4 the socket is taken.
    """
    flags.pop("detach")  # done before anything was imported
    flags["socket"] = flags["socket"] or default_socket()
    flags["admin"] = parse_admin(flags["admin"])
    config = checked(Config(**flags))
    if not sys.stderr.isatty():
        # structlog loads rich where it is installed: 4 MB and 0.1 s for coloured tracebacks that nobody would see.
        sys.modules["rich"] = None  # type: ignore[assignment] # the import system's word for "not to be had"
    from sidecar.app import serve  # noqa: PLC0415 - heavy imports, not for --help or a wrong flag

    sys.exit(serve(config, on_ready=caller.tell_ready))


def main(caller: Caller) -> None:
    try:
        cli.main(prog_name="pd-sidecar", obj=caller, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        caller.tell_failure(error.exit_code, error.format_message())
        sys.exit(error.exit_code)
    except ConfigError as error:
        _leave(caller, EXIT_CONFIG, error)
    except SocketTakenError as error:
        _leave(caller, EXIT_TAKEN, error)


def _leave(caller: Caller, code: int, error: Exception) -> NoReturn:
    click.echo(f"pd-sidecar: {error}", err=True)
    caller.tell_failure(code, str(error))
    sys.exit(code)
