"""Spans on their way from a real sidecar to a collector, one that answers and others; and the setting."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from sidecar import config
from sidecar.config import Config, checked
from sidecar.errors import ConfigError
from tests.pair.ports import free_port
from tests.shell.collector import Collector
from tests.shell.command import Command
from tests.shell.scene import LIMIT_S, Rank, decode, hello
from tests.shell.test_process import exit_code, logged, sidecar


async def test_a_collector_gets_the_span_of_a_real_sidecar(place: Path) -> None:
    with Collector().serving() as collector, decode() as waiting:
        async with sidecar(
            place, "--admin", "off", "--otlp-endpoint", collector.url, "--settle-after-s", "0"
        ) as process:
            rank = await Rank.join(place, hello("p"))
            rank.handshake(7, waiting.endpoint)
            rank.failed(7, http_status=499)
            await waiting.told()
            await rank.accepted()
            process.send_signal(signal.SIGTERM)
            assert await exit_code(process) == 0
            await rank.leave()

    assert collector.names == ["pd_sidecar.life"]
    [resource] = collector.batches[0].resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "pd-sidecar"
    [span] = resource.scope_spans[0].spans
    assert abs(span.end_time_unix_nano - time.time_ns()) < 60e9


async def test_a_collector_that_never_answers_delays_no_notice_and_not_the_end(place: Path) -> None:
    with Collector(None).serving() as collector, decode() as waiting:
        async with sidecar(
            place, "--admin", "off", "--otlp-endpoint", collector.url, "--settle-after-s", "0"
        ) as process:
            rank = await Rank.join(place, hello("p"))
            for room in range(600):  # above what the SDK sends at once (512), so it sends without waiting for its time
                rank.handshake(room, waiting.endpoint)
                rank.failed(room)
            for _ in range(600):
                await waiting.told()
            assert await asyncio.to_thread(collector.came.wait, LIMIT_S)
            rank.handshake(1000, waiting.endpoint)
            rank.failed(1000)
            assert (await waiting.told())[0] == b"1000"
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert await exit_code(process) == 0
            await rank.leave()

    assert time.monotonic() - began < LIMIT_S


async def test_a_collector_that_is_not_there_is_said_in_our_log(place: Path) -> None:
    async with sidecar(place, "--admin", "off", "--otlp-endpoint", f"http://127.0.0.1:{free_port()}") as process:
        rank = await Rank.join(place, hello("p"))
        rank.failed(7)
        await rank.accepted()
        process.send_signal(signal.SIGTERM)
        line = await logged(process, "spans not exported")
        assert await exit_code(process) == 0
        await rank.leave()

    assert line["level"] == "warning"
    assert line["reason"]


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://", "http://c:4318?a=b"])
def test_what_is_no_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is no collector"):
        checked(Config(socket=Path("/s"), otlp_endpoint=endpoint))


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capsys)
    monkeypatch.setenv("PD_SIDECAR_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert command("config")[0] == 0
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _: None)

    code, out, err = command("run", "--socket", "/nowhere/s")
    assert (code, out) == (2, "")
    assert "pip install 'pd-sidecar[otel]'" in err
