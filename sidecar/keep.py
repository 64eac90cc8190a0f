"""The process that a container runs: it outlives the worker beneath it, which serves, and starts another when one dies.

LeaderWorkerSet recreates a whole group of pods when one container of it restarts, so a worker's death must stay inside
the container. This process imports nothing that could fail, and as the first one of its container it reaps what is left
to it.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time

from sidecar.detach import Caller

PAUSE_FIRST_S = 0.1
PAUSE_LAST_S = 30.0
LONG_LIFE_S = 60.0
"""A worker that lived so long died of something new: the pause before the next one is short again."""

LOOK_S = 10.0
SILENT_LOOKS = 3
"""A worker whose loop has not turned for so many looks stands still. Counted, not timed: the clock also runs while a
container is frozen, and then nobody has stood still but all of it.
"""

EXIT_OWED = 3
"""As a worker ends when something is owed. A killed worker has told nobody what it owed."""

_ENDING = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_ENDING, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


def keep() -> Caller:
    """Returns in workers only. The process that called it ends with the exit code of the worker that was told to end;
    before anyone has served it ends as its first worker did, so that a wrong setting is seen at once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    return _Keeper().run()


class _Keeper:
    """Signals are blocked and waited for, never handled: nothing here can be interrupted, and as the first process of
    a PID namespace it would otherwise not be sent those it has no handler for.
    """

    def __init__(self) -> None:
        self._worker = 0
        self._has_served = False
        self._is_ending = False
        self._pause_s = PAUSE_FIRST_S

    def run(self) -> Caller:
        keeper = os.getpid()
        while True:
            started_s = time.monotonic()
            word, ours = os.pipe()
            beats = _Beats()
            self._worker = os.fork()
            if not self._worker:
                os.close(word)
                beats.speak()
                return _as_worker(ours, keeper=keeper)
            os.close(ours)
            code = self._until_worker_ends(beats)
            beats.close()
            self._has_served |= _said(word) == "0"
            if self._is_ending or not self._has_served:
                sys.exit(self._last_word(code))
            self._pause(code, lived_s=time.monotonic() - started_s)

    def _until_worker_ends(self, beats: "_Beats") -> int:
        """Its exit code, negative for the signal that killed it. One that stands still is killed."""
        while True:
            found = signal.sigtimedwait(_WATCHED, LOOK_S)
            if found is None:
                if beats.silent_looks() >= SILENT_LOOKS:
                    _log("worker stands still", worker=self._worker)
                    os.kill(self._worker, signal.SIGKILL)
            elif found.si_signo == signal.SIGCHLD:
                if (code := self._reap()) is not None:
                    return code
            else:
                self._note(found.si_signo)
                os.kill(self._worker, found.si_signo)  # not yet reaped: the number is still its own

    def _pause(self, code: int, *, lived_s: float) -> None:
        if lived_s >= LONG_LIFE_S:
            self._pause_s = PAUSE_FIRST_S
        _log("worker ended", worker=self._worker, exit_code=code, next_in_s=self._pause_s)
        self._worker = 0
        until_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_LAST_S)
        while (left_s := until_s - time.monotonic()) > 0:
            found = signal.sigtimedwait(_WATCHED, left_s)
            if found is None:
                return
            self._reap()
            self._note(found.si_signo)
            if self._is_ending:
                sys.exit(self._last_word(-found.si_signo))

    def _note(self, number: int) -> None:
        """At a terminal SIGHUP means that the terminal is gone; else it is the worker's, which reads its settings."""
        if number in _ENDING or (number == signal.SIGHUP and sys.stderr.isatty()):
            self._is_ending = True

    def _reap(self) -> int | None:
        """The exit code of the worker, if it is among those that have ended."""
        found: int | None = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._worker:
                    found = os.waitstatus_to_exitcode(ended[1])
        return found

    def _last_word(self, code: int) -> int:
        if code >= 0:
            return code
        if self._is_ending:
            return EXIT_OWED if self._has_served else 0
        return 128 - code


class _Beats:
    """That a worker's loop turns, as it tells systemd. Where there is a systemd to tell, nothing is heard here."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("")  # the kernel finds a name that nobody has
        self._has_begun = False
        self._silent = 0

    def speak(self) -> None:
        """In the worker."""
        if not os.environ.get("NOTIFY_SOCKET"):
            os.environ["NOTIFY_SOCKET"] = "@" + self._socket.getsockname()[1:].decode()
            os.environ["WATCHDOG_USEC"] = str(int(LOOK_S * 1_000_000))
        self._socket.close()

    def silent_looks(self) -> int:
        """In a row, since the first beat."""
        has_beaten = False
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1):
                has_beaten = True
        self._has_begun |= has_beaten
        self._silent = 0 if has_beaten else self._silent + self._has_begun
        return self._silent

    def close(self) -> None:
        self._socket.close()


def _as_worker(pipe: int, *, keeper: int) -> Caller:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # nobody would replace it
    if os.getppid() != keeper:
        os._exit(1)  # it died before we asked to be told
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    return Caller(pipe)


def _said(word: int) -> str:
    """`0` when it came to serve: it wrote that and closed its end long before it ended."""
    with os.fdopen(word) as pipe:
        return pipe.read()


def _log(event: str, **fields: object) -> None:
    """A line like those of the service."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = json.dumps({**fields, "event": event, "level": "warning", "timestamp": stamp})
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())
