"""`status` and `trace` against the admin server, as a person and as a script call them."""

import asyncio
import contextlib
import http.server
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import click
import pytest
import pytest_asyncio

from sidecar.cli.client import BoundsView, EndpointView, OwedView, RankView, RoomsView, StatusView
from sidecar.cli.show import status_lines
from sidecar.model import DecodeEndpoint
from tests.pair.ports import free_port
from tests.shell.admin import admin_of
from tests.shell.command import Command
from tests.shell.scene import LIMIT_S, Service, decode, ranks


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest_asyncio.fixture
async def address(patient: Service) -> AsyncIterator[str]:
    async with admin_of(patient) as (_, port):
        yield f"127.0.0.1:{port}"


async def test_status_shows_ranks_and_what_is_owed_to_whom(patient: Service, address: str, command: Command) -> None:
    port = free_port()
    async with ranks(patient.path, "p") as [rank]:
        rank.handshake(1, DecodeEndpoint("127.0.0.1", port))
        rank.failed(1)
        await rank.accepted()
        code, out, err = await command.aside("status", "--admin", address)
        _, as_json, _ = await command.aside("status", "--admin", address, "--json")

    assert (code, err) == (0, "")
    assert "rooms  0 open, 1 records" in out
    assert "owed   1, of these 1 pending, the oldest for " in out
    assert "mooncake  1 found" in out
    assert f"127.0.0.1:{port}  down" in out
    assert json.loads(as_json)["ranks"][0]["process"] == "p"


def test_on_a_terminal_what_is_wrong_is_coloured() -> None:
    ordinary = EndpointView("h", 1, "up", 0, 0, 0, None, "bare", False, "nothing known", False)
    unreachable = EndpointView("h", 2, "down", 3, 0, 3, 1.0, "cause", True, "18 frames", True)
    good = RankView("e", 0, 0, 0, 0, 1, "0.5.18", "mooncake", {"abort": "found"})
    lacking = RankView("e", 1, 1, 0, 0, 2, "0.5.18", "mooncake", {"abort": "sglang.x is missing"})
    view = StatusView(
        "1",
        "epoch",
        BoundsView(1024, 100, 64, 4096, 5.0, 600.0),
        [good, lacking],
        RoomsView(0, 0, 0),
        OwedView(3, 3, 1.0),
        [ordinary, unreachable],
        0,
    )
    lines = list(status_lines(view))

    assert [click.unstyle(line) for line in lines if "\x1b[31m" in line] == [
        "1     1 0 0     2    e       0.5.18  mooncake  1 sglang.x is missing",
        "h:2       down        3        0           3         in 1.0 s  cause, holds pages  "
        "18 frames, in doubt since its connection was lost",
    ]


async def test_status_of_an_idle_sidecar_says_so(address: str, command: Command) -> None:
    _, out, _ = await command.aside("status", "--admin", address)

    assert "no rank is connected" in out
    assert "no decode endpoint is known" in out


async def test_trace_says_who_was_told_and_why_another_was_not(
    patient: Service, address: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PD_SIDECAR_ADMIN", address)
    dead = free_port()
    with decode() as waiting:
        async with ranks(patient.path, "p") as [rank]:
            rank.handshake(7, waiting.endpoint)
            rank.handshake(7, DecodeEndpoint("127.0.0.1", dead))
            rank.failed(7)
            await waiting.told()
            code, out, _ = await command.aside("trace", "7")
            _, as_json, _ = await command.aside("trace", "7", "--json")

    assert code == 0
    assert "life 1 at prefill rank 0 of engine (process p): failed" in out
    assert ": gone\n" in out
    assert f"127.0.0.1:{waiting.endpoint.port}  told " in out
    assert "waits for evidence" in out
    assert f"127.0.0.1:{dead}  not told; owed: no connection to the endpoint" in out
    assert json.loads(as_json)["lives"][0]["state"] == "failed"


async def test_trace_of_an_unknown_room_says_so(address: str, command: Command) -> None:
    code, out, _ = await command.aside("trace", "8", "--admin", address)

    assert code == 0
    assert out.startswith("room 8: nothing is known")


@pytest.mark.parametrize("verb", [("status",), ("trace", "1")])
def test_nobody_listening_is_said_in_one_line(verb: tuple[str, ...], command: Command) -> None:
    code, out, err = command(*verb, "--admin", f"127.0.0.1:{free_port()}")

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "Connection refused. Does a sidecar run there? (--admin, PD_SIDECAR_ADMIN)" in err


@pytest.mark.parametrize(
    ("address", "said"), [("off", "--admin is off"), ("nowhere", "use HOST:PORT or off"), ("127.0.0.1:x", "HOST:PORT")]
)
def test_an_address_that_cannot_work_is_named(address: str, said: str, command: Command) -> None:
    code, _, err = command("status", "--admin", address)

    assert code == 2
    assert said in err


@pytest.mark.parametrize("room", ["-1", "x", str(2**63)])
def test_a_room_is_a_number_sglang_could_draw(room: str, command: Command) -> None:
    assert command("trace", "--", room)[0] == 2


@contextlib.contextmanager
def stranger(code: int, body: bytes) -> Iterator[str]:
    """Some other HTTP server."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        yield f"127.0.0.1:{server.server_port}"
        serving.join(LIMIT_S)


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (404, b"{}", "HTTP 404"),
        (200, b"<html>", "DecodeError"),
        (200, b"\xff\xfe\xff", "DecodeError"),
        (200, b"NaN", "DecodeError"),
        (200, b"[" * 100_000, "RecursionError"),
        (200, b'{"epoch": 1}', "Expected `str`, got `int`"),
    ],
)
def test_somebody_else_there_is_told_from_a_sidecar(code: int, body: bytes, said: str, command: Command) -> None:
    with stranger(code, body) as address:
        exit_code, _, err = command("status", "--admin", address)

    assert exit_code == 1
    assert "is no pd-sidecar of this version" in err
    assert said in err


async def test_watch_goes_on_until_it_is_interrupted(address: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "status", "--admin", address, "--watch", "--json", "--interval-s", "0.1"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        epochs = [json.loads(await process.stdout.readline())["epoch"] for _ in range(2)]
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert epochs == ["here", "here"]
    assert process.returncode == 130


async def test_watch_outlives_the_sidecar() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "status", "--admin", f"127.0.0.1:{free_port()}", "--watch"),
        *("--interval-s", "0.1"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        said = [await process.stderr.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert all(b"no answer from" in line for line in said)


def test_help_names_every_command(command: Command) -> None:
    code, out, _ = command("--help")

    assert code == 0
    assert [name for name in ("config", "doctor", "run", "status", "trace") if f"\n  {name} " not in out] == []


def test_a_command_that_does_not_exist_is_refused(command: Command) -> None:
    code, _, err = command("dance")

    assert code == 2
    assert "No such command 'dance'" in err


async def test_running_loads_no_other_command() -> None:
    """An engine waits for a detached `run`."""
    program = (
        "import sys, sidecar.cli, sidecar.app; wanted = ('sidecar.cli.show', 'tomllib', 'argparse', 'sglang_hooks'); "
        "print([name for name in wanted if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()

    assert out.strip() == b"[]"
