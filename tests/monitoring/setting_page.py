"""docs/settings.md: the service's flags as click has them, and the variables that the plugin reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from sglang_hooks.settings import Settings, read_settings
from sidecar.cli.run import run
from sidecar.cli.settings import variable
from sidecar.config import RELOADABLE, Config

BEGINNING = """# Settings

Generated from `sidecar/cli/settings.py`, `sidecar/config.py` and `sglang_hooks/settings.py` by `python -m
tests.monitoring`; do not edit.

## The service
A flag of `pd-sidecar run` wins over the environment, that over the file (`--config`, TOML), that over the default.
`pd-sidecar config` prints what is in force and where it comes from. *SIGHUP*: read again and put to use while it
serves; *restart*: only at the next start. An embedded sidecar inherits the engine's environment, so the variables
work there too; the plugin gives it `--socket`, `--idle-exit-s` (from its own variable, below) and, unless you name a
file, a log beside the socket.

| flag | variable | key in the file | default | it is | changed by |
|---|---|---|---|---|---|
"""

FLAGS_OF_ONE_RUN = """
Of `pd-sidecar run` alone:

| flag | it is |
|---|---|
"""

PLUGIN = """
## The plugin
Read once, when sglang loads it, from the engine's environment. A flag is on as `1`, `true`, `yes` or `on`, off as
`0`, `false`, `no` or `off`; seconds are zero or more. With a value that is neither, the plugin does not load and the
engine runs as stock; `pd-sidecar doctor` says which.

| variable | default | it is |
|---|---|---|
"""

ENDING = """
`PD_SIDECAR_ENGINE_PID` is set by the plugin for the processes of its own engine. Leave it alone. `SGLANG_PLUGINS` is
sglang's: if you set it, it must name `pd_sidecar`.
"""


@dataclass(frozen=True, slots=True)
class PluginVariable:
    """`field` of the plugin's Settings is what it sets."""

    field: str
    meaning: str


PLUGIN_VARIABLES = {
    "PD_SIDECAR_DISABLE": PluginVariable("disabled", "On: no hook is put in, the engine runs as stock."),
    "PD_SIDECAR_SOCKET": PluginVariable("socket", "Where the sidecar is, or will be started."),
    "PD_SIDECAR_EMBEDDED": PluginVariable("embedded", "Off: never start a sidecar; somebody else does."),
    "PD_SIDECAR_DRAIN_TIMEOUT": PluginVariable(
        "drain_timeout_s",
        "Seconds after which a room that still has chunks on the way counts as undrained: only a decode that holds its"
        " own pages is told then.",
    ),
    "PD_SIDECAR_IDLE_EXIT_S": PluginVariable(
        "idle_exit_s", "A sidecar that the plugin starts ends after so many seconds without ranks and debts; 0: never."
    ),
    "PD_SIDECAR_DECODE_HALF": PluginVariable(
        "decode_half",
        "Off: where sglang decodes, only the guard of its control port. See [the decode half](decode-half.md).",
    ),
    "PD_SIDECAR_PUSH": PluginVariable(
        "push", "`all`: the sidecar also pushes stock's own status messages. See [pushes](push.md)."
    ),
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": PluginVariable(
        "record_ttl_s", "sglang's own. An ended room is remembered for the longest of this, the next one and 300 s."
    ),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": PluginVariable("record_ttl_s", "sglang's own; see above."),
}


def setting_page() -> str:
    options = [option for option in run.params if isinstance(option, click.Option)]
    shared = [option for option in options if option.envvar]
    alone = [option for option in options if not option.envvar]
    return (
        BEGINNING
        + "".join(map(_service_row, shared))
        + FLAGS_OF_ONE_RUN
        + "".join(f"| `{option.opts[0]}` | {option.help} |\n" for option in alone)
        + PLUGIN
        + "".join(_plugin_rows())
        + ENDING
    )


def _service_row(option: click.Option) -> str:
    flag, name = option.opts[0], option.name
    is_setting = name in Config.__struct_fields__
    changed_by = "SIGHUP" if name in RELOADABLE else "restart" if is_setting else "SIGHUP reads it again"
    key = f"`{name}`" if is_setting else "-"
    cells = (f"`{flag}`", f"`{variable(flag)}`", key, _default(option), option.help or "", changed_by)
    return "| " + " | ".join(cells) + " |\n"


def _default(option: click.Option) -> str:
    if option.name == "socket":
        return "`/tmp/pd-sidecar-UID/sidecar.sock`"
    value = option.to_info_dict()["default"]
    return "-" if value is None else f"`{value}`"


def _plugin_rows() -> Iterator[str]:
    usual = read_settings({})
    for name, known in PLUGIN_VARIABLES.items():
        yield f"| `{name}` | {_usual(usual, known.field)} | {known.meaning} |\n"


def _usual(usual: Settings, field: str) -> str:
    value: object = getattr(usual, field)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) and field != "socket":
        return f"`{value}`"
    return "`/tmp/pd-sidecar-UID/sidecar.sock`" if field == "socket" else f"`{value:g}`"


class Asked(dict[str, str]):
    """An environment that remembers which variables were looked for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.names: list[str] = []

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        self.names.append(name)
        return super().get(name, default)
