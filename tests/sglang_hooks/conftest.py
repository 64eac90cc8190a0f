from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_hooks.rank import Rank
from sidecar.model import PROTOCOL, Hello


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def hello(process: str = "p") -> Hello:
    verdicts = {"abort_request": "found"}
    return Hello(PROTOCOL, process, "e", "prefill", 3, 3, 0, 0, 1, "0.5.18", "mooncake", 300.0, verdicts)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_rank(socket_path: Path, clock: Clock) -> Iterator[Callable[..., Rank]]:
    """Builds ranks; those whose emitter was started are stopped."""
    ranks: list[Rank] = []

    def make(*, started: bool = False, why_absent: str | None = None) -> Rank:
        rank = Rank(
            hello=hello(),
            socket=str(socket_path),
            record_ttl_s=300.0,
            drain_timeout_s=30.0,
            on_absent=lambda: why_absent,
            clock=clock,
        )
        if started:
            rank.emitter.start()
            ranks.append(rank)
        return rank

    yield make
    for rank in ranks:
        rank.emitter.stop(limit_s=10.0)
