"""The command as a process: exit codes, signals, detaching, one at a time."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.model import DecodeEndpoint
from tests.pair.ports import free_port
from tests.shell.scene import LIMIT_S, Rank, decode

COMMAND = (sys.executable, "-m", "sidecar", "run", "--socket")


@contextlib.asynccontextmanager
async def sidecar(place: Path, *flags: str) -> AsyncIterator[Process]:
    """Running and ready."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(place), *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        await logged(process, "ready")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def logged(process: Process, event: str) -> dict[str, object]:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while line := await process.stderr.readline():
            found: dict[str, object] = json.loads(line)
            if found["event"] == event:
                return found
    raise AssertionError(f"the log ended without {event!r}")


async def exit_code(process: Process) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await process.wait()


async def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command that must not start to serve."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(LIMIT_S):
        _, text = await process.communicate()
    assert process.returncode is not None
    return process.returncode, text.decode()


async def test_with_nothing_owed_it_ends_with_0(place: Path) -> None:
    async with sidecar(place, "--admin", "off") as process:
        rank = await Rank.join(place)
        process.send_signal(signal.SIGTERM)

        assert await exit_code(process) == 0
        await rank.hear_end()
        await rank.leave()

    assert not place.exists()  # noqa: ASYNC240 - nothing else runs


async def test_with_something_owed_it_says_so_by_its_exit_code(place: Path) -> None:
    async with sidecar(place, "--admin", "off", "--grace-s", "0.2") as process:
        rank = await Rank.join(place)
        rank.handshake(1, DecodeEndpoint("127.0.0.1", free_port()))
        rank.failed(1)
        await rank.accepted()
        process.send_signal(signal.SIGTERM)

        assert (await logged(process, "ending"))["still_owed"] == 1
        assert await exit_code(process) == 3
        await rank.leave()


async def test_what_can_leave_within_the_grace_leaves(place: Path) -> None:
    port = free_port()
    async with sidecar(place, "--admin", "off") as process:
        rank = await Rank.join(place)
        rank.handshake(1, DecodeEndpoint("127.0.0.1", port))
        rank.failed(1)
        await rank.accepted()
        process.send_signal(signal.SIGTERM)
        await rank.hear_end()
        with decode(port) as waiting:
            assert await waiting.told() == [b"1", b"0", b"0"]
            assert await exit_code(process) == 0
        await rank.leave()


async def test_a_second_one_at_the_same_socket_refuses(place: Path) -> None:
    async with sidecar(place, "--admin", "off"):
        code, text = await refused(str(place), "--admin", "off")

        assert (code, text.strip()) == (4, f"pd-sidecar: another pd-sidecar serves {place}")
        rank = await Rank.join(place)
        await rank.leave()


async def test_a_killed_one_is_replaced(place: Path) -> None:
    async with sidecar(place, "--admin", "off") as process:
        process.kill()
        await exit_code(process)
        async with sidecar(place, "--admin", "off"):
            rank = await Rank.join(place)
            await rank.leave()


async def test_unneeded_it_ends_by_itself(place: Path) -> None:
    async with sidecar(place, "--admin", "off", "--idle-exit-s", "0.1") as process:
        assert await exit_code(process) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--socket", "relative.sock"), "give an absolute path"),
        (("--admin", "nonsense"), "use HOST:PORT or off"),
        (("--admin", "127.0.0.1:99999"), "use HOST:PORT or off"),
        (("--log-level", "loud"), "use one of debug, info"),
        (("--record-limit", "0"), "--record-limit 0 is out of range"),
        (("--grace-s", "-1"), "--grace-s -1.0 is out of range"),
    ],
)
async def test_a_setting_that_cannot_work_is_named(place: Path, flags: tuple[str, ...], said: str) -> None:
    code, text = await refused(str(place), *flags)

    assert code == 2
    assert said in text


async def test_admin_answers_and_a_busy_port_is_refused_or_done_without(place: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    async with sidecar(place, "--admin", address):
        code, text = await refused(str(place.with_name("other.sock")), "--admin", address)
        async with sidecar(place.with_name("embedded.sock"), "--admin", address, "--idle-exit-s", "60"):
            metrics = await asyncio.to_thread(_get, f"http://{address}/metrics")

    assert code == 2
    assert "choose another port or off" in text
    assert "pd_sidecar_owed 0.0" in metrics


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310 - our own address
        return str(answer.read().decode())


async def test_detached_it_is_nobodys_child(place: Path) -> None:
    """sglang kills a server's whole process tree; the sidecar must not be in it."""
    inherited, kept = os.pipe()
    os.set_inheritable(kept, True)
    parent = await asyncio.create_subprocess_exec(
        *COMMAND, str(place), "--admin", "off", "--detach", "--idle-exit-s", "30", pass_fds=[kept]
    )

    assert await exit_code(parent) == 0
    pid = await _serving_pid(place)
    os.close(kept)
    try:
        parent_pid, session, descriptors = _read_process(pid)

        assert parent_pid not in (os.getpid(), parent.pid)
        assert session == pid
        assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)] == ["/dev/null"] * 3
        assert os.readlink(f"/proc/self/fd/{inherited}") not in descriptors
        assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    finally:
        os.close(inherited)
        os.kill(pid, signal.SIGKILL)


async def test_detached_it_returns_once_it_serves(place: Path) -> None:
    """A rank connects right after; it must not have to guess."""
    parent = await asyncio.create_subprocess_exec(*COMMAND, str(place), "--admin", "off", "--detach")

    assert await exit_code(parent) == 0
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(place))
        pid: int = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    code, text = await refused(str(place), "--admin", "off", "--detach")
    os.kill(pid, signal.SIGKILL)
    assert (code, "another pd-sidecar serves" in text) == (4, True)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--admin", "nowhere"), "use HOST:PORT or off"),
        (("--grace-s", "soon"), "not a valid float"),
        (("--log-file", "/proc/version/log"), "/proc/version/log"),
    ],
)
async def test_detached_it_says_why_it_cannot_serve(place: Path, flags: tuple[str, ...], reason: str) -> None:
    code, text = await refused(str(place), "--detach", *flags)

    assert code != 0
    assert reason in text


RANK = """
import sys, time
from pathlib import Path
from bench.running import connected_rank
from sidecar.model import DecodeEndpoint
with connected_rank(Path(sys.argv[1])) as rank:
    endpoint = DecodeEndpoint("127.0.0.1", int(sys.argv[2]))
    for room in (1, 2, 3):
        rank.meet(room, endpoint, "s")
    rank.open(1)
    rank.succeeded(rank.open(2))
    print("serving", flush=True)
    time.sleep(60)
"""


@contextlib.asynccontextmanager
async def rank_process(place: Path, port: int) -> AsyncIterator[Process]:
    """A rank of its own process with room 1 open and room 2 succeeded; decode has shaken hands for room 3 as well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RANK, str(place), str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            await process.stdout.readline()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_a_killed_ranks_open_and_early_rooms_are_told_and_no_others(place: Path) -> None:
    with decode() as endpoint:
        async with sidecar(place, "--admin", "off"), rank_process(place, endpoint.endpoint.port) as rank:
            rank.kill()
            began = asyncio.get_running_loop().time()

            assert sorted([await endpoint.told(), await endpoint.told()]) == [[b"1", b"0", b"0"], [b"3", b"0", b"0"]]
            assert asyncio.get_running_loop().time() - began < 0.5
            assert await endpoint.is_told_nothing(0.3)


async def test_a_stopped_rank_is_not_dead(place: Path) -> None:
    """SIGSTOP, a long garbage collection, a debugger: its stream stays open."""
    with decode() as endpoint:
        async with sidecar(place, "--admin", "off"), rank_process(place, endpoint.endpoint.port) as rank:
            rank.send_signal(signal.SIGSTOP)

            assert await endpoint.is_told_nothing(0.5)


def _read_process(pid: int) -> tuple[int, int, list[str]]:
    """Parent, session, and what its descriptors are."""
    process = Path(f"/proc/{pid}")
    status = (process / "stat").read_text().rpartition(")")[2].split()
    descriptors = []
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we look
            descriptors.append(os.readlink(link))
    return int(status[1]), int(status[3]), descriptors


async def _serving_pid(place: Path) -> int:
    async with asyncio.timeout(LIMIT_S):
        while True:  # it starts behind our back: there is nothing else to wait on
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(str(place))
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                return int(struct.unpack("3i", credentials)[0])
            await asyncio.sleep(0.02)


async def test_neither_the_engine_nor_torch_is_imported() -> None:
    program = (
        "import sys, sidecar.app, sidecar.shell.admin; print([m for m in ('torch', 'sglang') if m in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()

    assert out.strip() == b"[]"


async def test_the_log_goes_to_a_file_when_asked(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    log = place.with_name("log")
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(place), "--admin", "off", "--log-file", str(log), "--idle-exit-s", "0.05"
    )

    assert await exit_code(process) == 0
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["ready", "ending"]
