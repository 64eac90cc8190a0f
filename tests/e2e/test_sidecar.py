"""The sidecar beside a real engine: started by the plugin alone, replaced when it dies, done without when it cannot
start."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ended_before_decode, until
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

TIMEOUT_S = 10


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pair(PairSpec.of(plugin=True, timeout_s=60), "embedded") as running:
        yield running


def test_the_plugin_alone_starts_a_sidecar_that_is_nobodys_child(pair: Pair) -> None:
    """sglang's `kill_process_tree` must not reach it."""
    pid = pair.sidecar_pid()
    assert pid is not None
    sidecar = psutil.Process(pid)

    assert os.getsid(pid) != os.getsid(pair.prefill.scheduler_pids()[0])
    assert not set(pair.prefill.scheduler_pids()) & {parent.pid for parent in sidecar.parents()}
    assert Path(f"/proc/{pid}/fd/0").resolve() == Path("/dev/null")
    loaded = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    assert not [name for name in loaded if "torch" in name]


async def test_a_killed_sidecar_is_replaced_and_knows_what_ended_before(pair: Pair, client: Client) -> None:
    order = await ended_before_decode(client)
    first = pair.sidecar_pid()
    assert first is not None
    os.kill(first, signal.SIGKILL)

    async def replaced() -> bool:
        return pair.sidecar_pid() not in {None, first}

    await until(replaced, "no second sidecar", limit_s=20.0)
    decode = await client.send_decode(order)

    assert not decode.is_good
    assert decode.took_s < 5.0


async def test_an_abort_without_any_sidecar_is_told_when_one_comes(pair: Pair, client: Client) -> None:
    """The gap is the restart: the notice is late, not lost."""
    busy = client.send(Order(text="b" * 12_000))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=busy.order.room)
    waiting = client.send(Order(text="c" * 500))
    await pair.events.wait_for("in", role="prefill", tag="HANDSHAKE", room=waiting.order.room)
    pid = pair.sidecar_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await client.abort(waiting.order.rid)

    decode = await waiting.decode

    assert not decode.is_good
    assert decode.answered_at - (await waiting.prefill).answered_at < 10.0
    assert (await busy.decode).is_good


async def test_a_sidecar_that_cannot_start_leaves_stock_and_one_log_line() -> None:
    """A path below a file: nobody can make the directory."""
    socket = "/proc/version/pd-sidecar/s"
    spec = PairSpec.of(plugin=True, timeout_s=TIMEOUT_S, env={"PD_SIDECAR_SOCKET": socket})
    with running_pair(spec, "no-sidecar") as pair:
        async with Client(pair) as client:
            sent = client.send(Order(text="d" * 500))
            assert (await sent.prefill).is_good
            assert (await sent.decode).is_good
            order = await ended_before_decode(client)
            decode = await client.send_decode(order)
            report = (await client.server_info("prefill"))["internal_states"][0]["pd_sidecar"]
        log = pair.prefill.log.read_text()

    assert decode.took_s > TIMEOUT_S / 2
    assert log.count("pd-sidecar: no sidecar at") == 1
    assert "cannot be started" in log or "none can be started" in log
    assert report["stream"]["failures"] > 0
    assert not report["stream"]["connected"]
    assert report["faults"] == {}
