"""A name for one prefill server on a host, equal in its tokenizer process and in all ranks below it.

With several DP ranks the ranks are the children of a controller, so a parent's number will not do: the server's main
process, which loads the plugin before it starts any other, leaves its own in the environment.
"""

import os
from collections.abc import MutableMapping

VARIABLE = "PD_SIDECAR_ENGINE_PID"
"""Set by the plugin, for the processes that sglang starts. Not a setting."""


def mark_engine(environ: MutableMapping[str, str]) -> None:
    environ.setdefault(VARIABLE, str(os.getpid()))


def engine_name(host: str, bootstrap_port: int) -> str:
    """For the main process, which holds the tokenizer."""
    return f"{host}:{bootstrap_port}/{os.environ.get(VARIABLE) or os.getpid()}"


def engine_name_at_rank(host: str, bootstrap_port: int) -> str:
    """Where the main process did not load the plugin (actors of somebody else's), a parent's number is the best there
    is."""
    marked = os.environ.get(VARIABLE, "")
    is_inherited = marked and marked != str(os.getpid())
    return f"{host}:{bootstrap_port}/{marked if is_inherited else os.getppid()}"
