"""All of prefill's pushes by way of the sidecar (PD_SIDECAR_PUSH=all) on a real pair: normal traffic goes that way, and
goes on when the sidecar is stopped or killed."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import until
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

LATE_S = 5.0
"""Nothing of what is done here may hold a request up for as long; sglang's own limit is 30 s."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pair(PairSpec.of(prefill={"env": {"PD_SIDECAR_PUSH": "all"}}), "push-all") as running:
        yield running


async def parcels(client: Client) -> dict[str, Any]:
    info = await client.server_info("prefill")
    counts: dict[str, Any] = info["internal_states"][0]["pd_sidecar"]["parcels"]
    return counts


async def is_served(client: Client) -> float:
    """Seconds until decode's client has its answer."""
    answer = await client.send(Order(text="push " * 40)).decode
    assert answer.is_good
    return answer.took_s


async def test_normal_traffic_is_carried(client: Client) -> None:
    for _ in range(5):
        assert await is_served(client) < LATE_S

    counts = await parcels(client)
    assert counts["given"] >= 5
    assert not [name for name in counts if name.startswith("stock_") and name not in ("stock_path", "stock_no_sidecar")]


async def test_a_stopped_sidecar_holds_no_request_up_and_is_used_again_when_it_goes_on(
    pair: Pair, client: Client
) -> None:
    pid = pair.sidecar_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert await is_served(client) < LATE_S
        assert (await parcels(client))["overdue"] >= 1
    finally:
        os.kill(pid, signal.SIGCONT)
    given = (await parcels(client))["given"]

    async def is_carried_again() -> bool:
        await is_served(client)
        return bool((await parcels(client))["given"] > given)

    await until(is_carried_again, "nothing is carried any more")


async def test_a_killed_sidecar_holds_no_request_up(pair: Pair, client: Client) -> None:
    pid = pair.sidecar_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    for _ in range(3):
        assert await is_served(client) < LATE_S
