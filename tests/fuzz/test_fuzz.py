"""The kept corpus is replayed; then Hypothesis makes more of it. PD_SIDECAR_LONG=1 makes much more,
and `make fuzz` looks for what no example was thought of.

A file of the corpus is one input. To keep a new one: write the bytes that a failure prints to corpus/TARGET/NAME.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_hooks.contain import FAULTS
from tests.fuzz.targets import TARGETS, seeds_of

CORPUS = Path(__file__).parent / "corpus"


def kept(target: str) -> list[Path]:
    return sorted((CORPUS / seeds_of(target)).iterdir())


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Kept inputs joined, cut, overwritten and filled up."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(seeds), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.integers(0, 4))
        data[at : at + gone] = draw(st.binary(max_size=4))
    return bytes(data)


@pytest.fixture(autouse=True)
def _contained() -> None:
    """Faults that the hooks contain are theirs to count, and no other test's."""
    before = FAULTS.copy()
    yield
    FAULTS.clear()
    FAULTS.update(before)


CASES = [pytest.param(name, path, id=f"{name}-{path.name}") for name in TARGETS for path in kept(name)]


@pytest.mark.parametrize(("target", "path"), CASES)
def test_the_corpus(target: str, path: Path) -> None:
    TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes(target: str, data: st.DataObject) -> None:
    seeds = [path.read_bytes() for path in kept(target)]
    TARGETS[target](data.draw(st.binary(max_size=300) | mutated([seed for seed in seeds if len(seed) < 1000])))
