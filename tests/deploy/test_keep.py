"""`run --keep`, the process of a container: it outlives its workers, passes signals on, and its exit code is theirs."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from sidecar import app, keep
from sidecar.cli import EXIT_CONFIG, EXIT_TAKEN
from sidecar.model import DecodeEndpoint
from tests.pair.ports import free_port
from tests.shell.scene import LIMIT_S, Rank, decode
from tests.shell.test_process import exit_code, logged, rank_process, sidecar

PLAIN = (sys.executable, "-m", "sidecar")
SLOW = (sys.executable, "-c", "from sidecar import keep, __main__; keep.PAUSE_FIRST_S = 60; __main__.main()")
"""Its first pause is longer than a test."""

WATCHFUL = (sys.executable, "-c", "from sidecar import keep, __main__; keep.LOOK_S = 0.1; __main__.main()")

DIES = """
import os, signal
from sidecar import __main__, cli
cli.main = lambda caller: os.kill(os.getpid(), signal.SIGKILL)
__main__.main()
"""

OPEN = 2
"""Rooms of `rank_process`: one is open, and one has been shaken hands for."""

FIRST_OF_ITS_OWN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *PLAIN)


@contextlib.asynccontextmanager
async def kept(place: Path, *flags: str, command: Sequence[str] = PLAIN) -> AsyncIterator[Process]:
    """Running and ready."""
    process = await asyncio.create_subprocess_exec(
        *(*command, "run", "--keep", "--socket", str(place), "--admin", "off", *flags), stderr=asyncio.subprocess.PIPE
    )
    try:
        await logged(process, "ready")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(process: Process) -> int:
    (worker,) = children(process.pid)
    return worker


def test_both_mean_the_same_by_owed() -> None:
    assert app.EXIT_OWED == keep.EXIT_OWED


async def test_a_worker_that_dies_is_replaced_and_knows_what_it_knew(place: Path) -> None:
    """The rank says all again to the next worker, which tells its death as the first one would have."""
    admin = f"127.0.0.1:{free_port()}"
    with decode() as endpoint:
        async with kept(place, "--admin", admin) as process, rank_process(place, endpoint.endpoint.port) as rank:
            await until_open(admin, OPEN)
            first = worker_of(process)
            os.kill(first, signal.SIGKILL)
            assert (await logged(process, "worker ended"))["exit_code"] == -signal.SIGKILL
            await logged(process, "ready")
            assert worker_of(process) != first
            await until_open(admin, OPEN)
            rank.kill()

            assert sorted([await endpoint.told(), await endpoint.told()]) == [[b"1", b"0", b"0"], [b"3", b"0", b"0"]]
            process.terminate()
            assert await exit_code(process) == app.EXIT_NOTHING_OWED


async def until_open(admin: str, rooms: int) -> None:
    """What a rank says again comes after its hello: a stream alone is not enough."""
    async with asyncio.timeout(LIMIT_S):
        while await asyncio.to_thread(open_rooms, admin) != rooms:  # noqa: ASYNC110 - its word is all there is to look at
            await asyncio.sleep(0.02)


def open_rooms(admin: str) -> int:
    with urllib.request.urlopen(f"http://{admin}/v1/status", timeout=LIMIT_S) as answer:
        return int(json.load(answer)["rooms"]["open"])


async def test_ended_as_a_native_sidecar_it_has_told_of_the_engines_death(place: Path) -> None:
    """kubelet ends the engine first and the sidecar after it: what the engine left is told before we are gone."""
    with decode() as endpoint:
        async with kept(place) as process, rank_process(place, endpoint.endpoint.port) as rank:
            rank.kill()
            await rank.wait()
            process.terminate()

            assert await exit_code(process) == app.EXIT_NOTHING_OWED
            assert sorted([await endpoint.told(), await endpoint.told()]) == [[b"1", b"0", b"0"], [b"3", b"0", b"0"]]
            assert not place.exists()  # noqa: ASYNC240 - nothing else runs


async def test_a_death_that_comes_with_the_order_to_end_is_told(place: Path) -> None:
    """Both wait for it when it gets to run: systemd ends it within a millisecond of the engine."""
    with decode() as endpoint:
        async with sidecar(place, "--admin", "off") as process, rank_process(place, endpoint.endpoint.port) as rank:
            process.send_signal(signal.SIGSTOP)
            rank.kill()
            await rank.wait()
            process.terminate()
            process.send_signal(signal.SIGCONT)

            assert sorted([await endpoint.told(), await endpoint.told()]) == [[b"1", b"0", b"0"], [b"3", b"0", b"0"]]
            assert await exit_code(process) == app.EXIT_NOTHING_OWED


async def test_signals_are_the_workers_and_so_is_the_exit_code(place: Path) -> None:
    async with kept(place, "--grace-s", "0.1") as process:
        process.send_signal(signal.SIGHUP)
        await logged(process, "settings reread")
        rank = await Rank.join(place)
        rank.opened(1)
        rank.handshake(1, DecodeEndpoint("127.0.0.1", free_port()))
        rank.failed(1)
        await rank.accepted()
        process.terminate()

        assert await exit_code(process) == app.EXIT_OWED
        await rank.leave()


async def test_nobody_knows_what_a_killed_worker_owed(place: Path) -> None:
    async with kept(place, command=SLOW) as process:
        rank = await Rank.join(place)
        os.kill(worker_of(process), signal.SIGKILL)
        await logged(process, "worker ended")
        process.terminate()

        assert await exit_code(process) == keep.EXIT_OWED
        await rank.leave()


async def test_a_worker_that_dies_before_it_serves_ends_all(place: Path) -> None:
    """Whoever started the container sees it at once; nobody was served yet."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DIES, "run", "--keep", "--socket", str(place)), stderr=asyncio.subprocess.DEVNULL
    )

    assert await exit_code(process) == 128 + signal.SIGKILL


async def test_a_worker_that_stands_still_is_replaced_and_none_outlives_its_keeper(place: Path) -> None:
    """There is no liveness probe that would see it. A stray worker would keep the socket from the next one."""
    async with kept(place, command=WATCHFUL) as process:
        rank = await Rank.join(place)
        await asyncio.sleep(0.5)  # several looks: one that beats is left alone
        first = worker_of(process)
        os.kill(first, signal.SIGSTOP)

        assert (await logged(process, "worker stands still"))["worker"] == first
        await logged(process, "ready")
        await rank.leave()
        process.kill()
        await logged(process, "ending")


@pytest.mark.parametrize(
    ("flags", "code"),
    [(("--admin", "nowhere"), EXIT_CONFIG), (("--idle-exit-s", "1"), EXIT_CONFIG), (("--detach",), EXIT_CONFIG)],
    ids=["wrong_setting", "idle_exit", "detach"],
)
async def test_what_cannot_work_ends_it_at_once(place: Path, flags: tuple[str, ...], code: int) -> None:
    """In place of a container that looks alive and serves nobody."""
    process = await asyncio.create_subprocess_exec(
        *(*PLAIN, "run", "--keep", "--socket", str(place), *flags), stderr=asyncio.subprocess.PIPE
    )

    assert await exit_code(process) == code


async def test_a_taken_socket_ends_it_at_once(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.bind(str(place))
        somebody.listen()
        process = await asyncio.create_subprocess_exec(
            *(*PLAIN, "run", "--keep", "--socket", str(place), "--admin", "off"), stderr=asyncio.subprocess.DEVNULL
        )

        assert await exit_code(process) == EXIT_TAKEN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
async def test_as_the_first_process_of_its_namespace_it_reaps_and_can_be_ended(place: Path) -> None:
    async with kept(place, command=FIRST_OF_ITS_OWN) as process:
        keeper = worker_of(process)
        before = children(keeper)
        orphan = ("nsenter", f"--target={keeper}", "--pid", "sh", "-c", "sleep 0.01 & echo $!")
        await (await asyncio.create_subprocess_exec(*orphan, stdout=asyncio.subprocess.DEVNULL)).wait()
        async with asyncio.timeout(LIMIT_S):
            while children(keeper) != before:  # noqa: ASYNC110 - it is nobody's child: there is nothing to wait on
                await asyncio.sleep(0.01)
        os.kill(keeper, signal.SIGTERM)

        await logged(process, "ending")
        assert await exit_code(process) == app.EXIT_NOTHING_OWED
