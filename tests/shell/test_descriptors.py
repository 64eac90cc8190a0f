"""The budget of file descriptors: worked out from the limit, kept to, and told."""

import asyncio
import json
import resource
import sys
import urllib.request
from pathlib import Path

import pytest

from sidecar.model import DecodeEndpoint
from sidecar.shell.descriptors import OWN, PER_CONNECTION, PER_STREAM, budget_of
from tests.pair.ports import free_port
from tests.shell.scene import LIMIT_S, Rank
from tests.shell.test_process import logged


@pytest.mark.parametrize("limit", [256, 1024, 4096, 65_536])
def test_all_of_it_together_fits_the_limit(limit: int) -> None:
    budget = budget_of(limit)
    most = OWN + budget.visitors + PER_STREAM * budget.streams + PER_CONNECTION * budget.connections

    assert most <= limit


def test_four_thousand_endpoints_fit_twenty_thousand_descriptors() -> None:
    assert budget_of(20_000).connections >= 4_000


def test_a_tiny_limit_still_serves_a_few() -> None:
    budget = budget_of(64)

    assert (budget.connections, budget.streams, budget.visitors) == (16, 16, 4)


def test_a_usual_limit_is_enough_for_thousands() -> None:
    assert budget_of(65_536).connections > 14_000


async def test_a_low_limit_is_used_up_kept_to_and_told(place: Path) -> None:
    """As many endpoints as fit all have a socket. More than that are connected to in turn, and none costs the sidecar
    its other descriptors.
    """
    limit, address = 1024, f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "sidecar", "run", "--socket", str(place), "--admin", address]
    process = await asyncio.create_subprocess_exec(
        *command,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    ready = await logged(process, "ready")
    budget = budget_of(limit)
    rank = await Rank.join(place)
    for rooms in (range(budget.connections), range(budget.connections, 3 * budget.connections)):
        for room in rooms:
            rank.handshake(room, DecodeEndpoint("127.0.0.1", 10_000 + room), life=room + 1)
            rank.failed(room, room + 1)
        await rank.accepted()
        if not rooms.start:
            fitting = await asyncio.to_thread(_get, f"http://{address}/metrics")
    open_now = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))  # noqa: ASYNC240
    status, metrics = [await asyncio.to_thread(_get, f"http://{address}{path}") for path in ("/v1/status", "/metrics")]
    await rank.leave()
    process.kill()
    await process.communicate()

    assert (ready["descriptors"], ready["connection_budget"]) == (limit, budget.connections)
    assert open_now < limit
    assert json.loads(status)["bounds"]["connections"] == budget.connections
    assert f"pd_sidecar_descriptors_limit {limit}.0" in metrics
    assert f"pd_sidecar_connections_limit {budget.connections}.0" in metrics
    assert _value(fitting, "pd_sidecar_sockets") == budget.connections
    assert _value(fitting, 'pd_sidecar_push_failures_total{kind="open"}') == 0
    assert 0 < _value(metrics, "pd_sidecar_sockets") <= budget.connections


def _value(metrics: str, name: str) -> float:
    return float(metrics.partition(f"\n{name} ")[2].partition("\n")[0])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310 - our own address
        return str(answer.read().decode())
