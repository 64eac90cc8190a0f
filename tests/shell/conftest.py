"""A short path for sockets, and the service on it."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
import uvloop

from tests.shell.scene import Service

LONG_S = 60.0
ON_BOTH_LOOPS = ("test_delivery", "test_doorbell", "test_ingress", "test_driver")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in service; the modules where the loop's own manners matter on asyncio's as well."""
    on_both = item.path.stem in ON_BOTH_LOOPS
    return {"uvloop": uvloop.new_event_loop} | ({"asyncio": asyncio.new_event_loop} if on_both else {})


@pytest.fixture(autouse=True)
def quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), cache_logger_on_first_use=False)


@pytest.fixture
def place() -> Iterator[Path]:
    """pytest's own folders are named after the test, longer than a socket's path may be."""
    made = Path(tempfile.mkdtemp(prefix="pds"))
    yield made / "run" / "s.sock"
    shutil.rmtree(made)


@pytest_asyncio.fixture
async def service(place: Path) -> AsyncIterator[Service]:
    """Hand-offs settle after 0.1 s."""
    async with Service(place, settle_after_s=0.1) as running:
        yield running


@pytest_asyncio.fixture
async def patient(place: Path) -> AsyncIterator[Service]:
    """Hand-offs do not settle by themselves."""
    async with Service(place, settle_after_s=LONG_S) as running:
        yield running
