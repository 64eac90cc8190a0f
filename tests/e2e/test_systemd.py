"""The units under a real systemd, as they are shipped: installed, started, killed, frozen, reloaded and stopped."""

import asyncio
import contextlib
import json
import stat
import time
import urllib.request
from collections.abc import Iterator

import pytest

from sglang_hooks.shared_memory import KEEPS_ORDER
from tests.deploy.booted import LIMIT_S, Systemd, booted
from tests.pair.ports import free_port
from tests.shell.scene import decode

SIDECAR, ENGINE = "pd-sidecar@p0.service", "sglang-prefill@p0.service"

ENGINE_PROGRAM = """
import os, signal
from pathlib import Path
from bench.running import connected_rank
from sidecar.model import DecodeEndpoint
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with connected_rank(Path(os.environ["PD_SIDECAR_SOCKET"])) as rank:
    rank.meet(1, DecodeEndpoint("127.0.0.1", int(os.environ["DECODE_PORT"])), "s")
    rank.open(1)
    signal.sigwait([signal.SIGTERM])
    os._exit(0)
"""
"""Room 1 is open, and stays so when it is told to end."""

HANGS = "[Service]\nExecStart=\nExecStart=/bin/sleep 60\nTimeoutStartSec=1\n"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def admin() -> int:
    return free_port()


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory, port: int, admin: int) -> Iterator[Systemd]:
    etc = tmp_path_factory.mktemp("etc")
    for name, text in {
        "pd-sidecar/p0.env": f"PD_SIDECAR_ADMIN=127.0.0.1:{admin}\n",
        "pd-sidecar/frozen.env": "PD_SIDECAR_ADMIN=off\n",
        "pd-sidecar/wrong.env": "PD_SIDECAR_ADMIN=off\nPD_SIDECAR_LOG_LEVEL=loud\n",
        "systemd/system/pd-sidecar@absent.service.d/hangs.conf": HANGS,
        "sglang/absent.env": "DECODE_PORT=1\n",
        "systemd/system/pd-sidecar@frozen.service.d/soon.conf": "[Service]\nWatchdogSec=1\n",
        "sglang/p0.env": f"SGLANG_ARGS=--model-path model\nDECODE_PORT={port}\n",
    }.items():
        file = etc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with booted(etc, engine=ENGINE_PROGRAM, known=[SIDECAR, ENGINE]) as running:
        running.ctl("start", ENGINE)
        yield running


def ranks(admin: int) -> int:
    """Systemd hears of them with the next beat only."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5) as answer:
        return len(json.load(answer)["ranks"])
    return 0


def connected(systemd: Systemd, admin: int) -> dict[str, str]:
    """What systemd knows of the sidecar, once the engine's rank is connected to it."""
    deadline = time.monotonic() + LIMIT_S
    while not ranks(admin):
        assert time.monotonic() < deadline, systemd.run("systemctl", "status", SIDECAR, check=False)
        time.sleep(0.05)
    return systemd.shown(SIDECAR, "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts")


def test_the_engine_brings_its_sidecar_along_and_is_let_in(systemd: Systemd, admin: int) -> None:
    """Its user is another one: it comes in by the group."""
    shown = connected(systemd, admin)
    folder = systemd.root / "run/pd-sidecar/p0"
    found = [path.stat() for path in (folder, folder / "sidecar.sock")]

    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
    assert shown["StatusText"].startswith("ranks: ")
    assert [stat.S_IMODE(each.st_mode) for each in found] == [0o750, 0o660]
    assert 0 not in {each.st_uid for each in found}
    assert ("memfd:pd-sidecar" in systemd.run("cat", f"/proc/{shown['MainPID']}/maps")) == KEEPS_ORDER


def test_a_killed_one_is_replaced_beside_the_running_engine(systemd: Systemd, admin: int) -> None:
    before, engine = connected(systemd, admin), systemd.shown(ENGINE, "MainPID", "NRestarts")
    systemd.ctl("kill", "--signal=KILL", SIDECAR)
    systemd.until(SIDECAR, lambda shown: shown["NRestarts"] == str(int(before["NRestarts"]) + 1), "NRestarts")
    after = connected(systemd, admin)

    assert before["MainPID"] != after["MainPID"]
    assert engine == systemd.shown(ENGINE, "MainPID", "NRestarts")


def test_a_frozen_one_is_replaced(systemd: Systemd) -> None:
    systemd.ctl("start", "pd-sidecar@frozen.service")
    systemd.ctl("kill", "--signal=STOP", "pd-sidecar@frozen.service")
    shown = systemd.until("pd-sidecar@frozen.service", lambda shown: shown["NRestarts"] == "1", "NRestarts", "Result")
    systemd.ctl("stop", "pd-sidecar@frozen.service")

    assert shown["NRestarts"] == "1"


def test_a_reload_is_taken(systemd: Systemd, admin: int) -> None:
    before = connected(systemd, admin)
    systemd.ctl("reload", SIDECAR)

    assert connected(systemd, admin)["MainPID"] == before["MainPID"]


def test_an_engine_starts_without_one_that_does_not_come_up(systemd: Systemd) -> None:
    """It waits for TimeoutStartSec= and no longer."""
    systemd.ctl("start", "sglang-prefill@absent.service")
    shown = systemd.shown("sglang-prefill@absent.service", "ActiveState")
    systemd.ctl("stop", "sglang-prefill@absent.service")

    assert shown == {"ActiveState": "active"}


def test_a_wrong_setting_is_not_tried_again(systemd: Systemd) -> None:
    systemd.ctl("start", "pd-sidecar@wrong.service", check=False)
    shown = systemd.shown("pd-sidecar@wrong.service", "ActiveState", "ExecMainStatus", "NRestarts")

    assert shown == {"ActiveState": "failed", "ExecMainStatus": "2", "NRestarts": "0"}


async def test_it_stops_with_the_engine_after_telling_of_its_rooms(systemd: Systemd, port: int, admin: int) -> None:
    """PartOf= and Before=: it goes with the engine, and after it. After= in its place would turn that round."""
    connected(systemd, admin)
    with decode(port) as endpoint:
        await asyncio.to_thread(systemd.ctl, "stop", ENGINE)

        assert await endpoint.told() == [b"1", b"0", b"0"]
    names = ("ActiveState", "Result", "ExecMainStatus", "InactiveEnterTimestampMonotonic")
    engine, sidecar = (
        systemd.until(unit, lambda shown: shown["ActiveState"] in {"inactive", "failed"}, *names)
        for unit in (ENGINE, SIDECAR)
    )

    assert (sidecar["ActiveState"], sidecar["ExecMainStatus"]) == ("inactive", "0")
    assert int(engine["InactiveEnterTimestampMonotonic"]) < int(sidecar["InactiveEnterTimestampMonotonic"])
    assert not (systemd.root / "run/pd-sidecar/p0").exists()
    assert (systemd.root / "run/pd-sidecar").exists()
