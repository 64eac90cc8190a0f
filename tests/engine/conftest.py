"""These tests need sglang in the interpreter. `make test` runs them with the engine's venv; elsewhere they are not
collected."""

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
elif not (HAS_RANKS := importlib.util.find_spec("sglang.srt.mem_cache.chunk_cache") is not None):
    collect_ignore_glob = ["test_ranks_*.py"]  # their scheduler is put together for 0.5.18
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

if TYPE_CHECKING:
    from sglang_hooks.plugin import Plugin
    from tests.engine.ranks.company import Fork
    from tests.engine.ranks.scene import Raise
    from tests.engine.stage import Stage


MODULES_WITH_A_CONTEXT = (
    "sglang.srt.disaggregation.common.conn",
    "sglang.srt.disaggregation.mooncake.conn",
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.managers.scheduler",
)
"""They ask `sglang.srt.runtime_context` for what the server was started with."""


@pytest.fixture(scope="session", autouse=True)
def fork() -> Iterator["Fork | None"]:
    """Made before anything else, while this process has no threads."""
    if not HAS_RANKS:
        yield None
        return
    from tests.engine.ranks.company import Fork  # noqa: PLC0415 - only where the engine is

    made = Fork()
    yield made
    made.close()


@pytest.fixture
def raised(fork: "Fork", tmp_path: Path) -> Iterator["Raise"]:
    """Makes scenes, which are closed at the end; keywords as in `gathered`."""
    from tests.engine.ranks.scene import staged as rank_stage  # noqa: PLC0415 - only where the engine is

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(rank_stage(fork, tmp_path, **options))


@pytest.fixture(scope="session")
def gloo(fork: "Fork") -> Iterator[None]:
    """A group of one: the engine's own all-reduce runs for real."""
    import torch.distributed as dist  # noqa: PLC0415 - only where the engine is

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def plugin(gloo: None) -> "Plugin":
    from tests.engine.stage import StoppedError, installed_plugin  # noqa: PLC0415 - only where the engine is

    report = threading.excepthook

    def report_unless_stopped(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not StoppedError:
            report(args)

    threading.excepthook = report_unless_stopped
    return installed_plugin()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests whose KV pages the engine gave back, in order."""
    freed: list[str] = []
    for module in ("sglang.srt.disaggregation.prefill", "sglang.srt.managers.scheduler"):
        monkeypatch.setattr(f"{module}.release_kv_cache", lambda req, *_args, **_kwargs: freed.append(req.rid))
    parallel = SimpleNamespace(
        dp_size=1,
        num_dp_ranks=1,
        pp_size=1,
        pp_rank=0,
        tp_rank=0,
        enable_dsa_cache_layer_split=False,
        enable_kv_cache_sharding=False,
        load_balance_method="follow_bootstrap_room",
    )
    allocation = SimpleNamespace(disaggregation_decode_allocation_policy="immediate")
    plain = {
        "get_parallel": parallel,
        "get_disagg": allocation,
        "get_observability": SimpleNamespace(enable_trace=False),
    }
    for module in MODULES_WITH_A_CONTEXT:
        for name, value in plain.items():
            monkeypatch.setattr(f"{module}.{name}", lambda value=value: value, raising=False)
    monkeypatch.setattr("sglang.srt.managers.scheduler._make_abort_req", lambda req, **_: req, raising=False)
    return freed


@pytest.fixture
def stage(plugin: "Plugin", released: list[str]) -> Iterator["Stage"]:
    from tests.engine.stage import staged  # noqa: PLC0415 - only where the engine is

    with staged(plugin) as built:
        yield built


@pytest.fixture
def stock(plugin: "Plugin", released: list[str]) -> Iterator["Stage"]:
    """The same without a rank: every hook lets stock act."""
    from tests.engine.stage import staged  # noqa: PLC0415 - only where the engine is

    with staged(None) as built:
        yield built
