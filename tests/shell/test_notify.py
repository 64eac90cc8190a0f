"""What systemd hears, on the socket it would give us; and SIGHUP."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.config import Supervision, read_supervision
from sidecar.errors import ConfigError
from sidecar.shell.notify import Supervised, SystemdSocket
from tests.shell.scene import LIMIT_S


class Systemd:
    """Its end of the notify socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(address)

    async def hears(self) -> list[str]:
        """The lines of the next datagram."""
        async with asyncio.timeout(LIMIT_S):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode().split("\n")

    async def hears_at_last(self, line: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while line not in await self.hears():
                pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notify_socket(place: Path) -> str:
    place.parent.mkdir(mode=0o700)
    return str(place.with_name("notify"))


@pytest.fixture
def systemd(notify_socket: str) -> Iterator[Systemd]:
    listening = Systemd(notify_socket)
    yield listening
    listening.close()


class Service:
    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self.status = "idle"
        self.supervised = Supervised(
            SystemdSocket(address),
            loop=asyncio.get_running_loop(),
            status=lambda: self.status,
            watchdog_s=watchdog_s,
        )


@pytest_asyncio.fixture
async def service(notify_socket: str) -> AsyncIterator[Service]:
    made = Service(notify_socket, watchdog_s=0.02)
    yield made
    made.supervised.stop()


async def test_ready_and_what_it_is_doing_come_first(systemd: Systemd, service: Service) -> None:
    assert service.supervised.start()

    assert await systemd.hears() == ["WATCHDOG=1", "READY=1", "STATUS=idle"]


async def test_the_loop_beats_and_a_status_is_told_when_it_is_news(systemd: Systemd, service: Service) -> None:
    service.supervised.start()
    await systemd.hears()

    assert await systemd.hears() == ["WATCHDOG=1"]
    service.status = "busy"
    await systemd.hears_at_last("STATUS=busy")
    assert await systemd.hears() == ["WATCHDOG=1"]


async def test_beats_come_twice_in_the_watchdog_time(systemd: Systemd, notify_socket: str) -> None:
    loop = asyncio.get_running_loop()
    supervised = Service(notify_socket, watchdog_s=0.4).supervised
    started_s = loop.time()
    supervised.start()
    await systemd.hears()
    await systemd.hears()
    passed_s = loop.time() - started_s
    supervised.stop()

    assert passed_s >= 0.19


async def test_without_a_watchdog_only_news_is_told(systemd: Systemd, notify_socket: str) -> None:
    supervised = Service(notify_socket, watchdog_s=None).supervised
    supervised.start()
    assert await systemd.hears() == ["READY=1", "STATUS=idle"]
    supervised.begin_shutdown()

    assert await systemd.hears() == ["STOPPING=1", "STATUS=ending"]
    supervised.stop()


async def test_an_ending_one_keeps_the_watchdog_quiet(systemd: Systemd, service: Service) -> None:
    service.supervised.start()
    service.supervised.begin_shutdown()
    service.status = "busy"
    await systemd.hears_at_last("STOPPING=1")

    assert await systemd.hears() == ["WATCHDOG=1"]


async def test_ready_is_told_again_until_it_is_taken(notify_socket: str, service: Service) -> None:
    """A unit must not fail to start because its datagram found nobody."""
    assert not service.supervised.start()
    systemd = Systemd(notify_socket)

    assert await systemd.hears() == ["WATCHDOG=1", "READY=1", "STATUS=idle"]
    assert await systemd.hears() == ["WATCHDOG=1"]
    systemd.close()


async def test_a_systemd_that_reads_nothing_holds_nobody_up(systemd: Systemd, notify_socket: str) -> None:
    full = SystemdSocket(notify_socket)
    assert any(not full.tell("WATCHDOG=1") for _ in range(10_000))
    full.close()


async def test_an_abstract_address_begins_with_an_at_sign() -> None:
    name = f"pd-sidecar-test-{os.getpid()}"
    systemd, ours = Systemd(f"\0{name}"), SystemdSocket(f"@{name}")
    assert ours.tell("READY=1")
    assert await systemd.hears() == ["READY=1"]
    ours.close()
    systemd.close()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Supervision()),
        ({"NOTIFY_SOCKET": ""}, Supervision()),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000"}, Supervision(notify_socket="/n", watchdog_s=3.0)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3", "WATCHDOG_PID": "7"}, Supervision(notify_socket="/n")),
        (
            {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "5"},
            Supervision(notify_socket="/n", watchdog_s=0.5),
        ),
    ],
)
def test_systemds_variables(environ: dict[str, str], expected: Supervision) -> None:
    assert expected == read_supervision(environ, pid=5)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "1.5"])
def test_a_watchdog_time_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        read_supervision({"WATCHDOG_USEC": text}, pid=5)


async def run(place: Path, *flags: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "run", "--socket", str(place), "--admin", "off", *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )


async def logged(process: asyncio.subprocess.Process, event: str) -> dict[str, object]:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while line := await process.stderr.readline():
            found: dict[str, object] = json.loads(line)
            if found["event"] == event:
                return found
    raise AssertionError(f"the log ended without {event!r}")


async def ended(process: asyncio.subprocess.Process) -> int | None:
    async with asyncio.timeout(LIMIT_S):
        await process.communicate()
    return process.returncode


async def test_the_service_tells_from_ready_to_stopping(place: Path, notify_socket: str, systemd: Systemd) -> None:
    process = await run(place, NOTIFY_SOCKET=notify_socket, WATCHDOG_USEC="200000")

    assert await systemd.hears() == ["WATCHDOG=1", "READY=1", "STATUS=ranks: 0, notices owed: 0"]
    assert await systemd.hears() == ["WATCHDOG=1"]
    process.send_signal(signal.SIGTERM)
    await systemd.hears_at_last("STOPPING=1")
    assert await ended(process) == 0


async def test_a_reload_is_told_from_begin_to_end(place: Path, notify_socket: str, systemd: Systemd) -> None:
    """As a unit of `Type=notify-reload` waits for it; the time must not be before the signal."""
    file = Path(notify_socket).with_name("settings.toml")
    file.write_text('log_level = "info"')
    process = await run(place, "--config", str(file), NOTIFY_SOCKET=notify_socket)
    await systemd.hears_at_last("READY=1")
    sent_us = time.monotonic_ns() // 1000
    process.send_signal(signal.SIGHUP)

    reloading, when = await systemd.hears()
    assert reloading == "RELOADING=1"
    assert int(when.removeprefix("MONOTONIC_USEC=")) >= sent_us
    assert await systemd.hears() == ["READY=1"]
    process.send_signal(signal.SIGTERM)
    assert await systemd.hears() == ["STOPPING=1", "STATUS=ending"]
    assert await ended(process) == 0


async def test_ready_after_a_reload_is_told_again_until_it_is_taken(systemd: Systemd, service: Service) -> None:
    service.supervised.start()
    await systemd.hears()
    systemd.close()
    service.supervised.end_reload()

    assert not service.supervised._is_heard  # noqa: SLF001 - the next beat says it


async def test_nobody_at_the_notify_socket_is_logged_and_no_fault(place: Path, notify_socket: str) -> None:
    process = await run(place, NOTIFY_SOCKET=notify_socket)

    assert (await logged(process, "systemd not told"))["notify_socket"] == notify_socket
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0


async def test_a_detached_one_does_not_speak_for_its_caller(place: Path, notify_socket: str, systemd: Systemd) -> None:
    """An engine under systemd hands its NOTIFY_SOCKET down: STOPPING=1 from us would be said of the engine."""
    process = await run(place, "--detach", "--idle-exit-s", "0.05", NOTIFY_SOCKET=notify_socket)
    assert await ended(process) == 0
    async with asyncio.timeout(LIMIT_S):
        while place.exists():  # noqa: ASYNC110, ASYNC240 - it is nobody's child: there is nothing to wait on
            await asyncio.sleep(0.02)
    checking = SystemdSocket(notify_socket)
    checking.tell("first")
    checking.close()

    assert await systemd.hears() == ["first"]


async def test_sighup_reads_the_log_level_again(place: Path, notify_socket: str) -> None:
    file = Path(notify_socket).with_name("settings.toml")
    file.write_text('log_level = "info"')
    process = await run(place, "--config", str(file))
    await logged(process, "ready")
    file.write_text('log_level = "debug"')
    process.send_signal(signal.SIGHUP)
    assert (await logged(process, "settings reread"))["log_level"] == "debug"
    file.write_text('log_level = "loud"')
    process.send_signal(signal.SIGHUP)
    assert "use one of debug" in str((await logged(process, "settings not reread"))["reason"])
    file.write_text("grace_s = 'soon'")
    process.send_signal(signal.SIGHUP)
    assert "not a valid float" in str((await logged(process, "settings not reread"))["reason"])

    file.write_text('log_level = "error"')
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        assert await process.stderr.read() == b""
    assert await ended(process) == 0
