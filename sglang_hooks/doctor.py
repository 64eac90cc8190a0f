"""`pd-sidecar doctor`: will the plugin work in this environment, and why not? Needs neither an engine nor a sidecar.

`python -m sglang_hooks.doctor` does the same where click, and so the `pd-sidecar` command, is missing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Literal

from sglang_hooks.compat import FOUND, survey
from sglang_hooks.embedded import NEEDED_MODULES
from sglang_hooks.place import examine_place
from sglang_hooks.settings import Settings, read_settings
from sglang_hooks.uncovered import ALL, RUST_SERVER, uncovered
from sidecar.errors import ConfigError

PLUGIN = "pd_sidecar"
PLUGIN_GROUP = "sglang.srt.plugins"
ENOUGH_DESCRIPTORS = 4096
"""About 850 decode endpoints connected at once."""

_DISTRIBUTIONS = {"zmq": "pyzmq", "prometheus_client": "prometheus-client"}

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`FAIL`: decode will not be told, or the engine runs as stock. `warn`: works, but perhaps not as was meant."""

    level: Level
    subject: str
    text: str


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding("ok", "pd-sidecar", f"{_version('pd-sidecar')}, Python {sys.version.split()[0]} at {sys.executable}")
    settings: Settings | None = None
    try:
        settings = read_settings(environ)
    except ConfigError as error:
        yield Finding("FAIL", "settings", f"{error}; the plugin does not load")
    yield from _plugin(environ, is_disabled=settings is not None and settings.disabled)
    yield from _engine()
    yield _uncovered(environ)
    is_served = False
    if settings is not None:
        place = examine_place(Path(settings.socket))
        is_served = place.served_by is not None
        yield _socket(settings, place.fault, place.served_by)
    yield from _service(is_needed=settings is not None and settings.embedded and not is_served)
    yield _descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _plugin(environ: Mapping[str, str], *, is_disabled: bool) -> Iterator[Finding]:
    points = entry_points(group=PLUGIN_GROUP, name=PLUGIN)
    if points:
        yield Finding("ok", "plugin", f"sglang finds {next(iter(points)).value}")
    else:
        yield Finding("FAIL", "plugin", f"no entry point {PLUGIN} in {PLUGIN_GROUP}: pip install pd-sidecar here")
    allowed = environ.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN not in {name.strip() for name in allowed.split(",")}:
        yield Finding("FAIL", "SGLANG_PLUGINS", f"{allowed!r} leaves us out: add {PLUGIN}")
    elif allowed:
        yield Finding("ok", "SGLANG_PLUGINS", f"{allowed!r} names {PLUGIN}")
    else:
        yield Finding("ok", "SGLANG_PLUGINS", "not set: sglang loads every plugin")
    if is_disabled:
        yield Finding("warn", "PD_SIDECAR_DISABLE", "set: no hook is put in, the engine runs as stock")
    else:
        yield Finding("ok", "PD_SIDECAR_DISABLE", "not set")


def _engine() -> Iterator[Finding]:
    if importlib.util.find_spec("sglang") is None:
        yield Finding("warn", "sglang", "not installed here: right for a supervised sidecar, not for a prefill engine")
        return
    yield Finding("ok", "sglang", _version("sglang"))
    try:
        # sglang and what it imports may print; our own output may be read by a script.
        with contextlib.redirect_stdout(sys.stderr):
            verdicts = survey().verdicts
    except Exception as error:
        yield Finding("FAIL", "sglang", f"cannot be imported here: {type(error).__name__}: {error}")
        return
    for name, verdict in verdicts.items():
        yield Finding("ok" if verdict == FOUND else "FAIL", f"hook {name}", verdict)
    missing = sum(verdict != FOUND for verdict in verdicts.values())
    if missing:
        yield Finding("FAIL", "hooks", f"{missing} of {len(verdicts)} are not there: the plugin stands down as a whole")


def _uncovered(environ: Mapping[str, str]) -> Finding:
    """The engine's own arguments are not known here: its ranks' hellos say which of these is so (pd-sidecar status)."""
    if RUST_SERVER in uncovered(None, environ):
        return Finding("warn", "refusals", f"decode is not told of what the tokenizer refuses: {RUST_SERVER}")
    return Finding("ok", "refusals", f"before a rank has the request: told to decode, but not with {'; '.join(ALL)}")


def _socket(settings: Settings, fault: str | None, served_by: str | None) -> Finding:
    subject = f"socket {settings.socket}"
    if fault is not None:
        return Finding("FAIL", subject, fault)
    if served_by is not None:
        return Finding("ok", subject, f"served by {served_by}")
    if settings.embedded:
        return Finding("ok", subject, "usable; nobody serves it, the first prefill rank starts a sidecar")
    return Finding("warn", subject, "usable; nobody serves it, and with PD_SIDECAR_EMBEDDED=0 no rank will")


def _service(*, is_needed: bool) -> Iterator[Finding]:
    for name in NEEDED_MODULES:
        distribution = _DISTRIBUTIONS.get(name, name)
        if importlib.util.find_spec(name) is not None:
            yield Finding("ok", f"module {name}", f"{distribution} {_version(distribution)}")
        else:
            text = "missing, so no sidecar can be started here: pip install 'pd-sidecar[service]'"
            yield Finding("FAIL" if is_needed else "warn", f"module {name}", text)


def _descriptors(hard: int) -> Finding:
    """The sidecar raises its soft limit to the hard one by itself."""
    if hard == resource.RLIM_INFINITY:
        return Finding("ok", "descriptors", "no limit")
    if hard >= ENOUGH_DESCRIPTORS:
        return Finding("ok", "descriptors", f"up to {hard}")
    text = f"at most {hard}: with many decode endpoints it connects to them in turn; raise `ulimit -Hn`"
    return Finding("warn", "descriptors", text)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version (no package metadata)"


def doctor(arguments: list[str]) -> int:
    """Say whether the plugin and an embedded sidecar work in this environment. Exit code: 0 yes, 1 no."""
    parser = argparse.ArgumentParser(prog="pd-sidecar doctor", description=doctor.__doc__)
    parser.add_argument("--json", action="store_true", help="one object: is_fit and findings")
    as_json: bool = parser.parse_args(arguments).json
    findings = []
    for finding in examine(os.environ):
        findings.append(finding)
        if not as_json:
            sys.stdout.write(f"{finding.level:<4}  {finding.subject}: {finding.text}\n")
    is_fit = all(finding.level != "FAIL" for finding in findings)
    if as_json:
        document = {"is_fit": is_fit, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0 if is_fit else 1


if __name__ == "__main__":
    sys.exit(doctor(sys.argv[1:]))
