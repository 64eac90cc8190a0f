"""A short path for sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """pytest's own folders are named after the test, longer than a socket's path may be."""
    made = Path(tempfile.mkdtemp(prefix="pds"))
    yield made / "run" / "s.sock"
    shutil.rmtree(made)
