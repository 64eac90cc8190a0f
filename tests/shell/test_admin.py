"""AdminServer, the documents behind it, and the metrics."""

import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import fields

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from sidecar.core.stats import Histogram, Stats
from sidecar.model import DecodeEndpoint, Form
from tests.pair.ports import free_port
from tests.shell.admin import admin_of, registry_of
from tests.shell.scene import Service, decode, ranks


@pytest_asyncio.fixture
async def url(patient: Service) -> AsyncIterator[str]:
    async with admin_of(patient) as (_, port):
        yield f"http://127.0.0.1:{port}"


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_health_and_readiness(patient: Service, url: str) -> None:
    assert await get(f"{url}/healthz") == (200, "ok\n")
    assert await get(f"{url}/readyz") == (200, '{"is_ready":true,"ranks":[]}')
    patient.ingress.stop()

    assert await get(f"{url}/readyz") == (503, '{"is_ready":false}')
    assert await get(f"{url}/healthz") == (200, "ok\n")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_it_serves_over_ipv6(patient: Service) -> None:
    async with admin_of(patient, host="::1") as (_, port):
        assert (await get(f"http://[::1]:{port}/healthz"))[0] == 200


async def test_status_says_who_is_here_and_what_is_owed(patient: Service, url: str) -> None:
    port = free_port()
    async with ranks(patient.path, "p") as [rank]:
        rank.handshake(1, DecodeEndpoint("127.0.0.1", port))
        rank.failed(1)
        await rank.accepted()
        document = json.loads((await get(f"{url}/v1/status"))[1])

    assert document["ranks"][0]["process"] == "p"
    assert document["ranks"][0]["hooks"] == {"abort": "found"}
    assert document["owed"]["pending"] == 1
    assert document["endpoints"][0]["connection"] == "down"


async def test_a_room_says_why_it_is_still_owed(patient: Service, url: str) -> None:
    with decode() as waiting:
        async with ranks(patient.path, "p") as [rank]:
            rank.handshake(7, waiting.endpoint)
            rank.handshake(7, DecodeEndpoint("127.0.0.1", free_port()))
            rank.failed(7)
            await waiting.told()
            [life] = json.loads((await get(f"{url}/v1/rooms/7"))[1])["lives"]

    assert life["state"] == "failed"
    assert life["cause"] == "gone"
    told, untold = life["endpoints"]
    assert (told["notice"], untold["notice"]) == ("handed_off", "pending")
    assert "waits for evidence" in told["in_words"]
    assert "not told; owed: no connection to the endpoint" in untold["in_words"]


@pytest.mark.parametrize("path", ["/", "/v1/rooms/x", "/v1/rooms/99999999999999999999", "/nothing"])
async def test_anything_else_is_not_found(url: str, path: str) -> None:
    assert (await get(url + path))[0] == 404


async def test_metrics_are_well_formed(patient: Service, url: str) -> None:
    with decode() as waiting:
        async with ranks(patient.path, "p", "q") as [rank, _]:
            rank.handshake(1, waiting.endpoint)
            rank.failed(1)
            await waiting.told()
            text = (await get(f"{url}/metrics"))[1]

    assert "pd_sidecar_owed 1.0" in text
    assert 'pd_sidecar_endpoints{connection="up"} 1.0' in text
    labels = 'dp_rank="0",engine_type="prefill",pp_rank="0",tp_rank="0"'
    assert f'pd_sidecar_hooks{{{labels},verdict="found"}} 2.0' in text
    assert "pd_sidecar_owed_to_hand_off_seconds_count 1.0" in text
    for line in text.splitlines():
        name = line.split()[2] if line.startswith("#") else re.split(r"[ {]", line)[0]
        assert name.startswith("pd_sidecar_")
        assert "127.0.0.1" not in line


async def test_every_counter_of_the_core_is_exposed(patient: Service) -> None:
    """A new field of Stats must come with its metric."""
    stats = patient.notifier.stats
    for number, field in enumerate(fields(Stats), start=710_000):
        value = getattr(stats, field.name)
        if isinstance(value, Counter):
            value[Form.CAUSE if "form" in field.name else "something"] = number
        elif isinstance(value, Histogram):
            value.observe([float(number)])
        elif isinstance(value, dict):
            value.update(dict.fromkeys(value, number))
        else:
            setattr(stats, field.name, number)
    text = generate_latest(registry_of(patient)).decode()

    missing = [field.name for number, field in enumerate(fields(Stats), start=710_000) if f"{number}.0" not in text]
    assert missing == []
