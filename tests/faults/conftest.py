"""A stage for each scene, and one book for all of them: build/faults.json."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.faults.actors import Stage
from tests.faults.ledger import Book
from tests.pair.paths import build_dir


@pytest.fixture(scope="session")
def book() -> Iterator[Book]:
    opened = Book(build_dir() / "faults.json")
    yield opened
    opened.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(stack)
