"""What the plugin reads from the environment, once, when sglang loads it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.errors import ConfigError

MIN_RECORD_TTL_S = 300.0
PUSHES = ("notices", "all")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`socket` is the path of the sidecar's AF_UNIX stream; `embedded` lets the plugin start a sidecar if nobody
    serves it.

    `drain_timeout_s`: after it a room counts as undrained, and only a decode that holds its own pages is told.
    `record_ttl_s`: how long an ended room is remembered: max(bootstrap timeout, waiting timeout, 300).
    `push`: what the sidecar pushes for prefill, its own notices or all status messages of stock as well.
    `decode_half`: where sglang decodes, more than the guard of its control thread.
    """

    disabled: bool
    socket: str
    embedded: bool
    drain_timeout_s: float
    record_ttl_s: float
    idle_exit_s: float
    decode_half: bool = True
    push: str = "notices"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Raises ConfigError that names the variable."""
    ttl = max(
        MIN_RECORD_TTL_S,
        _seconds(environ, "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", 300.0),
        _seconds(environ, "SGLANG_DISAGGREGATION_WAITING_TIMEOUT", 300.0),
    )
    return Settings(
        disabled=_flag(environ, "PD_SIDECAR_DISABLE", default=False),
        socket=environ.get("PD_SIDECAR_SOCKET", "").strip() or default_socket(),
        embedded=_flag(environ, "PD_SIDECAR_EMBEDDED", default=True),
        drain_timeout_s=_seconds(environ, "PD_SIDECAR_DRAIN_TIMEOUT", 30.0),
        record_ttl_s=ttl,
        idle_exit_s=_seconds(environ, "PD_SIDECAR_IDLE_EXIT_S", 60.0),
        decode_half=_flag(environ, "PD_SIDECAR_DECODE_HALF", default=True),
        push=_word(environ, "PD_SIDECAR_PUSH", PUSHES),
    )


def default_socket() -> str:
    """One sidecar for each user of a host: all engines of that user share it."""
    return f"/tmp/pd-sidecar-{os.getuid()}/sidecar.sock"  # noqa: S108 - the directory is 0700 and its owner is checked


def _flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    raise ConfigError(f"{name}={text!r} is neither on nor off: use 1 or 0")


def _word(environ: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """The first of `words` if nothing is said."""
    text = environ.get(name, "").strip().lower() or words[0]
    if text not in words:
        raise ConfigError(f"{name}={text!r} is not known: use {' or '.join(words)}")
    return text


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a number of seconds") from None
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{name}={text!r} must be zero or more, and finite")
    return seconds
