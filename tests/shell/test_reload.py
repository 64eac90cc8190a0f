"""SIGHUP on the real process: which settings change while it serves, and what a bad file changes (nothing)."""

import asyncio
import contextlib
import json
import signal
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import RELOADABLE, Config
from sidecar.reload import Settings
from sidecar.shell.admin import FRESH_S
from tests.pair.ports import free_port
from tests.shell.scene import LIMIT_S, Rank, hello
from tests.shell.test_process import logged, sidecar

FIRST = {"record_limit": 10, "settle_after_s": 5.0, "idle_close_s": 600.0}


@dataclass
class Running:
    process: asyncio.subprocess.Process
    file: Path
    address: str

    def write(self, **settings: object) -> None:
        self.file.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items()))

    async def reload(self, event: str = "settings reread") -> dict[str, Any]:
        """What the log says of it."""
        self.process.send_signal(signal.SIGHUP)
        return await logged(self.process, event)

    async def status(self) -> dict[str, Any]:
        """Not the answer that an earlier call was given."""

        def get() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://{self.address}/v1/status", timeout=LIMIT_S) as answer:
                return dict(json.loads(answer.read()))

        await asyncio.sleep(FRESH_S)
        return await asyncio.to_thread(get)


@contextlib.asynccontextmanager
async def running(place: Path) -> AsyncIterator[Running]:
    place.parent.mkdir(mode=0o700, exist_ok=True)
    file, address = place.with_name("settings.toml"), f"127.0.0.1:{free_port()}"
    file.write_text("\n".join(f"{name} = {value}" for name, value in FIRST.items()))
    async with sidecar(place, "--config", str(file), "--admin", address) as process:
        yield Running(process, file, address)


async def test_limits_are_read_again_and_put_to_use(place: Path) -> None:
    async with running(place) as it:
        rank = await Rank.join(place)
        for room in range(6):
            rank.opened(room, room + 1)
            rank.failed(room, room + 1)
        await rank.accepted()
        assert (await it.status())["rooms"]["records"] == 6
        it.write(record_limit=2, settle_after_s=6.0, idle_close_s=30.0, grace_s=1.0)
        said = await it.reload()
        status = await it.status()
        await rank.leave()

    assert said["changed"] == {"record_limit": 2, "settle_after_s": 6.0, "idle_close_s": 30.0, "grace_s": 1.0}
    assert said["level"] == "info"
    assert status["rooms"] == {"open": 0, "records": 2, "tombstones": 4}
    assert (status["bounds"]["records"], status["bounds"]["settle_after_s"]) == (2, 6.0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"record_limit": 0}, "--record-limit 0 is out of range"),
        ({"record_limit": 3, "log_level": "loud"}, "use one of debug"),
        ({"record_limit": 3, "settle_after_s": -1.0}, "--settle-after-s -1.0 is out of range"),
        ({"no_such_setting": 3}, "no setting is named no_such_setting"),
    ],
)
async def test_a_bad_file_keeps_every_old_value_and_is_named(place: Path, bad: dict[str, Any], reason: str) -> None:
    async with running(place) as it:
        before = (await it.status())["bounds"]
        it.write(**bad)
        said = await it.reload("settings not reread")

        assert reason in said["reason"]
        assert said["level"] == "warning"
        assert (await it.status())["bounds"] == before


async def test_a_file_that_is_gone_keeps_every_old_value(place: Path) -> None:
    async with running(place) as it:
        it.file.unlink()

        assert "cannot be read" in (await it.reload("settings not reread"))["reason"]


async def test_what_needs_a_restart_is_said(place: Path) -> None:
    never = place.with_name("never-made")
    async with running(place) as it:
        it.write(**FIRST, log_file=str(never), socket_group=1)
        said = await it.reload()

    assert said["needs_restart"] == ["log_file", "socket_group"]
    assert (said["changed"], said["level"]) == ({}, "warning")
    assert not never.exists()


def test_every_setting_is_reloadable_or_known_not_to_be() -> None:
    """A new setting must be put on one side."""
    fixed = {"socket", "socket_group", "admin", "log_file", "otlp_endpoint", "scheduling"}
    assert set(Config.__struct_fields__) - set(RELOADABLE) == fixed


def test_a_reload_that_changes_nothing_changes_nothing() -> None:
    config = Config(socket=Path("/s"))
    levels: list[str] = []
    settings = Settings(config, reread=lambda: config, set_level=levels.append)
    applied: list[Config] = []
    settings.reload(applied.append)

    assert (settings.now, applied, levels) == (config, [config], ["info"])


async def test_readiness_names_the_ranks_that_have_said_hello(place: Path) -> None:
    def ready(address: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=LIMIT_S) as answer:
            return dict(json.loads(answer.read()))

    async with running(place) as it:
        assert await asyncio.to_thread(ready, it.address) == {"is_ready": True, "ranks": []}
        rank = await Rank.join(place, hello(prefill_rank=3))
        told = await asyncio.to_thread(ready, it.address)
        await rank.leave()

    assert told == {"is_ready": True, "ranks": [{"engine": "engine", "prefill_rank": 3}]}


async def test_a_new_level_holds_for_every_line(place: Path) -> None:
    """Also for those of parts that were there before."""
    async with running(place) as it:
        it.write(**FIRST, log_level="debug")
        await it.reload()
        rank = await Rank.join(place)
        await logged(it.process, "received")
        it.write(**FIRST, log_level="error")
        it.process.send_signal(signal.SIGHUP)
        while (await it.status())["ranks"]:  # the reload has gone before: signals are handled in order
            await rank.leave()
        it.process.terminate()
        _, rest = await it.process.communicate()

    assert not any(json.loads(line)["event"] in ("rank left", "ending") for line in rest.splitlines())
