"""The units under a real systemd, as they are shipped: installed, started, killed, frozen, reloaded and stopped."""

import asyncio
import stat
import urllib.request
from collections.abc import Iterator

import pytest

from tests.deploy.booted import Systemd, booted
from tests.shell.scene import decode, free_port

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
        "systemd/system/pd-sidecar@frozen.service.d/soon.conf": "[Service]\nWatchdogSec=1\n",
        "sglang/p0.env": f"SGLANG_ARGS=--model-path model\nDECODE_PORT={port}\n",
    }.items():
        file = etc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with booted(etc, engine=ENGINE_PROGRAM) as running:
        running.ctl("start", ENGINE)
        yield running


def connected(systemd: Systemd) -> dict[str, str]:
    names = ("ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "WatchdogTimestampMonotonic")
    return systemd.until(SIDECAR, lambda shown: shown["StatusText"].startswith("ranks: 1,"), *names)


def test_the_engine_brings_its_sidecar_along_and_is_let_in(systemd: Systemd, admin: int) -> None:
    """Its user is another one: it comes in by the group. Type=notify: systemd has heard that it serves."""
    shown = connected(systemd)
    folder = systemd.root / "run/pd-sidecar/p0"
    found = [(path.stat().st_mode, path.owner(), path.group()) for path in (folder, folder / "sidecar.sock")]
    uid = (folder / "sidecar.sock").stat().st_uid

    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
    assert int(shown["WatchdogTimestampMonotonic"]) > 0
    assert [stat.S_IMODE(mode) for mode, _, _ in found] == [0o750, 0o660]
    assert uid != 0
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=10) as answer:
        assert answer.status == 200


def test_a_killed_one_is_replaced_beside_the_running_engine(systemd: Systemd) -> None:
    before, engine = connected(systemd), systemd.shown(ENGINE, "MainPID", "NRestarts")
    systemd.ctl("kill", "--signal=KILL", SIDECAR)
    systemd.until(SIDECAR, lambda shown: shown["NRestarts"] == str(int(before["NRestarts"]) + 1), "NRestarts")
    after = connected(systemd)

    assert before["MainPID"] != after["MainPID"]
    assert engine == systemd.shown(ENGINE, "MainPID", "NRestarts")


def test_a_frozen_one_is_replaced(systemd: Systemd) -> None:
    systemd.ctl("start", "pd-sidecar@frozen.service")
    systemd.ctl("kill", "--signal=STOP", "pd-sidecar@frozen.service")
    shown = systemd.until("pd-sidecar@frozen.service", lambda shown: shown["NRestarts"] == "1", "NRestarts", "Result")
    systemd.ctl("stop", "pd-sidecar@frozen.service")

    assert shown["NRestarts"] == "1"


def test_a_reload_is_taken(systemd: Systemd) -> None:
    before = connected(systemd)
    systemd.ctl("reload", SIDECAR)

    assert connected(systemd)["MainPID"] == before["MainPID"]


def test_a_wrong_setting_is_not_tried_again(systemd: Systemd) -> None:
    systemd.ctl("start", "pd-sidecar@wrong.service", check=False)
    shown = systemd.shown("pd-sidecar@wrong.service", "ActiveState", "ExecMainStatus", "NRestarts")

    assert shown == {"ActiveState": "failed", "ExecMainStatus": "2", "NRestarts": "0"}


async def test_stopping_the_engine_stops_it_after_the_engines_rooms_were_told(systemd: Systemd, port: int) -> None:
    """PartOf= and Before=: it goes with the engine, and after it. After= in its place would turn that round."""
    connected(systemd)
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
