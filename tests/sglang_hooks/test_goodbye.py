"""The end of a rank's process, as the plugin has it: an orderly one says goodbye, whoever is killed cannot."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_hooks.rank import Rank
from sidecar.model import Goodbye
from tests.sglang_hooks.doubles import LIMIT_S, ScriptedSidecar

ROOT = Path(__file__).parents[2]

PROGRAM = """
import multiprocessing, os, signal, sys, time
from types import SimpleNamespace
from sglang_hooks.compat import EngineParts, Findings
from sglang_hooks.plugin import Plugin
from sglang_hooks.settings import read_settings

class Manager:
    __module__ = "sglang.srt.disaggregation.mooncake.conn"
    disaggregation_mode = SimpleNamespace(value="prefill")
    attn_tp_rank = attn_cp_rank = pp_rank = attn_dp_rank = 0
    attn_tp_size = attn_cp_size = pp_size = 1
    bootstrap_host, bootstrap_port = "127.0.0.1", 1
    def __init__(self):
        self.server_socket = SimpleNamespace(recv_multipart=lambda: [b""])

def rank(socket, end):
    parts = EngineParts(None, object, "0", None)
    settings = read_settings({"PD_SIDECAR_SOCKET": socket, "PD_SIDECAR_EMBEDDED": "0"})
    plugin = Plugin(settings=settings, findings=Findings({}, parts), parts=parts)
    plugin.after_manager_init(None, Manager())
    begin = time.monotonic()
    while not plugin._rank.emitter.traffic.connected and time.monotonic() - begin < 10:
        time.sleep(0.005)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    socket, end, where = sys.argv[1:]
    if where == "main":
        rank(socket, end)
    else:
        child = multiprocessing.get_context("spawn").Process(target=rank, args=(socket, end))
        child.start()
        child.join()
"""


def run(tmp_path: Path, socket_path: Path, end: str, where: str) -> None:
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(socket_path), end, where]
    subprocess.run(command, timeout=3 * LIMIT_S, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("where", ["main", "child"])
def test_an_orderly_end_says_goodbye(tmp_path: Path, socket_path: Path, where: str) -> None:
    """sglang spawns its schedulers by multiprocessing."""
    with ScriptedSidecar(socket_path) as sidecar:
        run(tmp_path, socket_path, "in order", where)

        assert [type(fact) for fact in sidecar.hear(1)] == [Goodbye]


def test_a_killed_one_says_nothing(tmp_path: Path, socket_path: Path) -> None:
    with ScriptedSidecar(socket_path) as sidecar:
        run(tmp_path, socket_path, "killed", "main")
        sidecar.meet()

        assert sidecar.facts == []


def test_the_end_waits_for_no_sidecar(make_rank: Callable[..., Rank], socket_path: Path) -> None:
    """One that is stopped says no welcome; the emitter's thread waits for it, the end of the process does not."""
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(socket_path))
        stopped.listen()
        rank = make_rank(started=True)
        stopped.accept()[0].close()
        begin = time.monotonic()
        rank.say_goodbye(limit_s=0.05)
        took_s = time.monotonic() - begin

    assert took_s < 1.0
