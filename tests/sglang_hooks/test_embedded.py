"""The sidecar that an engine starts by itself."""

import fcntl
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_hooks.embedded import EmbeddedStart, on_absent
from sglang_hooks.hooks.tokenizer import DOOR_ATTRIBUTE, TokenizerHooks
from sglang_hooks.settings import Settings
from tests.pair.embedded import await_sidecar, end_sidecar, sidecar_pid
from tests.sglang_hooks.test_tokenizer import Manager

IDLE_EXIT_S = 1.0


def settings(socket: Path, *, embedded: bool = True) -> Settings:
    return Settings(
        disabled=False,
        socket=str(socket),
        embedded=embedded,
        drain_timeout_s=30.0,
        record_ttl_s=300.0,
        idle_exit_s=IDLE_EXIT_S,
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PD_SIDECAR_ADMIN", "off")
    socket = tmp_path / "d" / "s"
    yield socket
    end_sidecar(socket, limit_s=IDLE_EXIT_S + 9)


def test_the_main_process_starts_one_before_there_is_any_rank(place: Path) -> None:
    manager = Manager()
    vars(manager)["disaggregation_mode"] = SimpleNamespace(value="prefill")
    args = SimpleNamespace(
        host="127.0.0.1", disaggregation_bootstrap_port=8998, disaggregation_transfer_backend="mooncake"
    )

    TokenizerHooks(settings=settings(place), sglang="0.5.18", verdicts={}).after_init(None, manager, args)
    try:
        await_sidecar(place)
        pid = sidecar_pid(place)
        assert pid is not None
        assert os.getsid(pid) != os.getsid(0)
    finally:
        vars(manager)[DOOR_ATTRIBUTE].emitter.stop(limit_s=10.0)


def test_without_the_extra_none_is_started_and_the_reason_says_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "aiohttp" else name)

    reason = on_absent(settings(place))()

    assert reason == "none can be started: aiohttp missing, install pd-sidecar[service]"


def test_while_another_process_starts_one_nothing_is_done(place: Path) -> None:
    place.parent.mkdir()
    with Path(f"{place}.starting").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        assert EmbeddedStart(socket=str(place), idle_exit_s=IDLE_EXIT_S)() is None

    assert sidecar_pid(place) is None


def test_the_next_try_waits_for_its_pause(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_hooks.embedded.NEEDED_MODULES", ("no_such_module_anywhere",))
    start = EmbeddedStart(socket=str(place), idle_exit_s=IDLE_EXIT_S)
    times = iter([100.0, 100.9, 101.0])
    monkeypatch.setattr("sglang_hooks.embedded.time.monotonic", lambda: next(times))

    answers = [start(), start(), start()]

    assert [answer is None for answer in answers] == [False, True, False]


def test_embedded_off_says_so(place: Path) -> None:
    assert on_absent(settings(place, embedded=False))() == "PD_SIDECAR_EMBEDDED=0, so none is started"
