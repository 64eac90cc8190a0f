"""The settings of the service: one frozen value, whole and checked. Flags and environment are read here and nowhere
else.
"""

import grp
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from sidecar.errors import ConfigError

SCHEDULINGS = ("batch", "normal")

LOG_LEVELS = ("debug", "info", "warning", "error")

SGLANG_VERSIONS = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Those whose decode side is known."""

RELOADABLE = ("log_level", "record_limit", "settle_after_s", "idle_close_s", "idle_exit_s", "grace_s", "decode_sglang")
"""What SIGHUP puts to use. The other settings say where the sidecar is found and who may come in: for these it must be
started anew.
"""


class Config(Struct, frozen=True, kw_only=True):
    """`admin` is host and port, or None for no HTTP. `idle_exit_s` 0: never end by itself, as under a supervisor.
    `decode_sglang` is the oldest version that decode engines run, where the operator says so. `otlp_endpoint` is the
    base URL of a collector that spans go to; None: no spans are made. `scheduling` batch: no wake-up interrupts a
    thread of an engine.
    """

    socket: Path
    socket_group: int | None = None
    admin: tuple[str, int] | None = ("127.0.0.1", 9464)
    log_level: str = "info"
    log_file: Path | None = None
    record_limit: int = 4096
    settle_after_s: float = 5.0
    idle_exit_s: float = 0.0
    idle_close_s: float = 600.0
    grace_s: float = 5.0
    decode_sglang: str | None = None
    otlp_endpoint: str | None = None
    scheduling: str = "batch"


class Supervision(Struct, frozen=True, kw_only=True):
    """What systemd asks of a service it started. `watchdog_s`: it kills us when it hears nothing for so long."""

    notify_socket: str | None = None
    watchdog_s: float | None = None


def default_socket() -> Path:
    """One sidecar for each user of a host."""
    return Path(f"/tmp/pd-sidecar-{os.getuid()}/sidecar.sock")  # noqa: S108 - the directory is 0700 and its owner is checked


def checked(config: Config) -> Config:
    """Raises ConfigError that names the setting and says what it may be."""
    if not config.socket.is_absolute():
        raise ConfigError(f"--socket {config.socket} is relative: give an absolute path")
    _check_word("--log-level", config.log_level, LOG_LEVELS)
    _check_word("--scheduling", config.scheduling, SCHEDULINGS)
    if not 1 <= config.record_limit <= 1_000_000:
        raise ConfigError(f"--record-limit {config.record_limit} is out of range: use 1 to 1000000")
    if config.decode_sglang is not None and config.decode_sglang not in SGLANG_VERSIONS:
        known = ", ".join(SGLANG_VERSIONS)
        raise ConfigError(f"--decode-sglang {config.decode_sglang} is not known: use one of {known}, or leave it out")
    if config.otlp_endpoint is not None:
        _check_collector(config.otlp_endpoint)
    for flag, seconds in (
        ("--settle-after-s", config.settle_after_s),
        ("--idle-exit-s", config.idle_exit_s),
        ("--idle-close-s", config.idle_close_s),
        ("--grace-s", config.grace_s),
    ):
        if not 0 <= seconds <= 86_400:
            raise ConfigError(f"{flag} {seconds} is out of range: use 0 to 86400")
    return config


def _check_word(flag: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise ConfigError(f"{flag} {word} is unknown: use one of {', '.join(known)}")


def _check_collector(endpoint: str) -> None:
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ConfigError(f"--otlp-endpoint {endpoint} is no collector: use http://HOST:PORT (OTLP over HTTP)")
    if not _has_module("opentelemetry.exporter.otlp.proto.http"):
        raise ConfigError("--otlp-endpoint needs OpenTelemetry: pip install 'pd-sidecar[otel]', or leave it out")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def parse_admin(text: str) -> tuple[str, int] | None:
    """`HOST:PORT`, `[HOST]:PORT` or `off`. Raises ConfigError."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(f"--admin {text} is no address: use HOST:PORT or off")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_group(text: str) -> int:
    """A gid, or the name of a group of this host. Raises ConfigError."""
    if text.isascii() and text.isdigit() and int(text) < 2**32:
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):
        raise ConfigError(f"--socket-group {text}: this host has no such group") from None


def read_file(path: Path) -> dict[str, str]:
    """The settings of a TOML file, by the names of Config, as they would stand in a flag. Raises ConfigError."""
    import tomllib  # noqa: PLC0415 - an engine that starts the sidecar gives it no file

    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from error
    unknown = sorted(set(said) - set(Config.__struct_fields__))
    if unknown:
        known = ", ".join(Config.__struct_fields__)
        raise ConfigError(f"--config {path}: no setting is named {', '.join(unknown)}; there are {known}")
    for name, value in said.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"--config {path}: {name} is neither text nor a number")
    return {name: str(value) for name, value in said.items()}


def read_supervision(environ: Mapping[str, str], *, pid: int) -> Supervision:
    """systemd's own variables. Raises ConfigError for a watchdog time that is no number."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    is_watched = bool(microseconds) and environ.get("WATCHDOG_PID", str(pid)) == str(pid)
    if is_watched and not (microseconds.isascii() and microseconds.isdigit() and int(microseconds)):
        raise ConfigError(f"WATCHDOG_USEC={microseconds!r} is no number of microseconds")
    return Supervision(
        notify_socket=environ.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(microseconds) / 1e6 if is_watched else None,
    )
