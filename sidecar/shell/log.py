"""Log lines: JSON for machines, readable on a terminal; to stderr or to a file of bounded size; few of each kind."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

FILE_LIMIT_BYTES = 8 * 1024 * 1024

WINDOW_S = 10.0
LINES_IN_WINDOW = 20
"""Lines of one event within WINDOW_S; of what is above it only the number is told. Not at level debug."""


class Repeats:
    """Which lines may be written. Whoever has a clock calls `roll_over` every WINDOW_S.

    Events are literals of this program, so there are few: data that comes in goes into the other fields of a line.
    """

    def __init__(self) -> None:
        self.suppressed = 0
        self._written: Counter[str] = Counter()
        self._surplus: Counter[str] = Counter()

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method != "debug" and not event.pop(ADMITTED, False) and not self.admits(str(event["event"])):
            raise structlog.DropEvent
        return event

    def admits(self, event: str) -> bool:
        """Whether one more may be written. Else it counts as suppressed."""
        if self._written[event] < LINES_IN_WINDOW:
            self._written[event] += 1
            return True
        self.suppress(event, 1)
        return False

    def suppress(self, event: str, count: int) -> None:
        self._surplus[event] += count
        self.suppressed += count

    def roll_over(self) -> None:
        surplus, self._surplus = self._surplus, Counter()
        self._written.clear()
        for event, count in surplus.items():
            line = {ADMITTED: True, "of": event, "count": count, "within_s": WINDOW_S}
            structlog.get_logger("sidecar").warning("lines suppressed", **line)


ADMITTED = "_is_admitted"
"""Key of a line for which `Repeats` was asked before it was put together."""


class BoundedFile:
    """A text file that is renamed to `<name>.1` once it is full: at most twice the limit stays on disk."""

    def __init__(self, path: Path, *, limit_bytes: int = FILE_LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._file = self._open()

    def write(self, text: str) -> int:
        """Text that cannot be written, as on a full disk, is lost: the service goes on."""
        with self._lock, contextlib.suppress(OSError):
            if self._file.closed:  # it made way, and nothing could be opened in its place
                self._file = self._open()
            if self._file.tell() + len(text) > self._limit_bytes:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._file = self._open()
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _open(self) -> TextIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        opened = os.fdopen(descriptor, "a", encoding="utf-8")
        opened.seek(0, os.SEEK_END)
        return opened


class StandardError:
    """Without a buffer: text that a full disk or a reader that has gone does not take is lost, and not held against the
    exit code."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


_level = "info"


def is_debugging() -> bool:
    """For places where even a line that is not written costs too much."""
    return _level == "debug"


def configure(*, level: str, file: BoundedFile | None, repeats: Repeats | None = None) -> None:
    """Process-wide. `level` is one of LEVELS."""
    global _level  # noqa: PLW0603 - as process-wide as structlog's own
    _level = level
    output = StandardError() if file is None else file
    renderer: Processor = structlog.processors.JSONRenderer()
    if file is None and sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            repeats or Repeats(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=output),  # type: ignore[arg-type] # only write and flush are used
        cache_logger_on_first_use=False,
    )


def report_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A bug here or in a library: loud, and the stream or timer it happened in is all that it costs."""
    structlog.get_logger("sidecar").error("fault", text=context["message"], exc_info=context.get("exception"))
