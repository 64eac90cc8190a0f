"""The command line. `run` is at hand; every other command is loaded when it is asked for, so that a starting engine
waits for none of them, nor for the modules that find them.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import click

from sidecar.cli.run import run
from sidecar.detach import Caller
from sidecar.errors import ConfigError, SidecarError, SocketTakenError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXIT_NO_ANSWER = 1
EXIT_CONFIG = 2
EXIT_TAKEN = 4
EXIT_INTERRUPTED = 130

COMMANDS_GROUP = "pd_sidecar.commands"
"""Entry points of commands that are no part of the sidecar: called with the arguments, they answer the exit code."""

_LAZY = {
    "config": "sidecar.cli.settings:config",
    "status": "sidecar.cli.show:status",
    "trace": "sidecar.cli.show:trace",
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_LAZY, *(point.name for point in _points_elsewhere())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        at_hand = super().get_command(ctx, cmd_name)
        if at_hand is not None:
            return at_hand
        if cmd_name in _LAZY:
            import pkgutil  # noqa: PLC0415 - not for `run`

            loaded = pkgutil.resolve_name(_LAZY[cmd_name])
            assert isinstance(loaded, click.Command)  # noqa: S101 - an impossible state
            return loaded
        for point in _points_elsewhere():
            if point.name == cmd_name:
                return _from_elsewhere(point)
        return None


def _points_elsewhere() -> "Iterable[EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - not for `run`: it loads the whole of email

    return entry_points(group=COMMANDS_GROUP)


def _from_elsewhere(point: "EntryPoint") -> click.Command:
    called = point.load()

    @click.command(
        point.name,
        help=called.__doc__,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        sys.exit(called(list(arguments)))

    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="pd-sidecar", prog_name="pd-sidecar")
def cli() -> None:
    """Tells SGLang decode engines what their prefill engine gave up."""


cli.add_command(run)


def main(caller: Caller) -> None:
    try:
        cli.main(prog_name="pd-sidecar", obj=caller, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        caller.tell_failure(error.exit_code, error.format_message())
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except ConfigError as error:
        _leave(caller, EXIT_CONFIG, error)
    except SocketTakenError as error:
        _leave(caller, EXIT_TAKEN, error)
    except SidecarError as error:
        _leave(caller, EXIT_NO_ANSWER, error)


def _leave(caller: Caller, code: int, error: Exception) -> NoReturn:
    click.echo(f"pd-sidecar: {error}", err=True)
    caller.tell_failure(code, str(error))
    sys.exit(code)
