"""A sidecar does not interrupt an engine that computes on the same core."""

import os
from pathlib import Path

import pytest
import structlog

from sidecar.shell.scheduling import yield_to_others
from tests.shell.test_process import refused, sidecar


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.parametrize(
    ("flags", "policy"), [((), os.SCHED_BATCH), (("--scheduling", "normal"), os.SCHED_OTHER)], ids=["batch", "normal"]
)
async def test_all_its_threads_are_scheduled_as_said(place: Path, flags: tuple[str, ...], policy: int) -> None:
    async with sidecar(place, "--admin", "off", *flags) as process:
        assert policies(process.pid) == {policy}


async def test_an_unknown_word_is_refused(place: Path) -> None:
    assert await refused(str(place), "--scheduling", "idle") == (
        2,
        "pd-sidecar: --scheduling idle is unknown: use one of batch, normal\n",
    )


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The policies asked for. This process keeps its own."""
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda _, policy, __: asked.append(policy))
    return asked


@pytest.mark.parametrize("policy", [os.SCHED_IDLE, os.SCHED_FIFO])
def test_a_policy_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch, chosen: list[int], policy: int) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    yield_to_others()

    assert chosen == []


def test_where_it_is_not_allowed_it_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with structlog.testing.capture_logs() as lines:
        yield_to_others()

    assert [(line["log_level"], line["reason"]) for line in lines] == [("warning", "not here")]


def test_else_it_is_batch(monkeypatch: pytest.MonkeyPatch, chosen: list[int]) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    yield_to_others()

    assert chosen == [os.SCHED_BATCH]
