"""`pd-sidecar run`. An engine may be waiting for it: it imports what it needs and no more."""

import os
import sys
from typing import Any

import click

from sidecar.cli.settings import effective, reread, with_settings
from sidecar.config import Supervision, read_supervision
from sidecar.detach import Caller
from sidecar.errors import ConfigError


@click.command()
@with_settings
@click.option("--detach", is_flag=True, help="Leave the caller's process tree; return once it is served.")
@click.option("--keep", is_flag=True, help="As a container's process: replace a worker that dies.")
@click.pass_context
def run(ctx: click.Context, /, detach: bool, keep: bool, **_: Any) -> None:
    """Serve the prefill ranks of this host.

    SIGHUP reads log level and limits again (`pd-sidecar config` says which). Exit code: 0 nothing owed, 2 a setting
    that cannot work, 3 something is still owed, 4 the socket is taken.
    """
    caller: Caller = ctx.obj
    settings = effective(ctx)
    if keep and (detach or settings.idle_exit_s):
        raise ConfigError(
            "--keep goes with neither --detach nor --idle-exit-s: it is there for as long as its container"
        )
    # A detached one is its caller's child in the environment only: what it told systemd would be said of the engine.
    supervision = Supervision() if detach else read_supervision(os.environ, pid=os.getpid())
    if not sys.stderr.isatty():
        # structlog loads rich where it is installed: 4 MB and 0.1 s for coloured tracebacks that nobody would see.
        sys.modules["rich"] = None  # type: ignore[assignment] # the import system's word for "not to be had"
    from sidecar.app import serve  # noqa: PLC0415 - heavy imports, not for --help or a wrong flag

    sys.exit(
        serve(
            settings,
            supervision=supervision,
            on_ready=caller.tell_ready,
            reread=lambda: reread(run, sys.argv[2:]),
        )
    )
