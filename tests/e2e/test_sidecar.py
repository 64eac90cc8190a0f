"""The sidecar beside a real engine: started by the plugin alone, replaced when it dies, done without when it cannot
start."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sglang_hooks.shared_memory import KEEPS_ORDER
from tests.e2e.conftest import ended_before_decode, until
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order


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


def has_mapped_it(pid: int | None) -> bool:
    return "memfd:pd-sidecar" in Path(f"/proc/{pid}/maps").read_text()


async def test_what_the_rank_says_goes_through_memory_that_both_have_mapped(pair: Pair, client: Client) -> None:
    tables = await client.tables("prefill")

    assert tables["plugin"]["stream"]["shares_memory"] == KEEPS_ORDER
    pids = [pair.sidecar_pid(), *pair.prefill.scheduler_pids()]
    assert [has_mapped_it(pid) for pid in pids] == [KEEPS_ORDER] * 2


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
