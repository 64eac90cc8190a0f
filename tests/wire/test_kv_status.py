"""Status messages, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import ROOM_LIMIT, Notice
from sidecar.wire.kv_status import failed_frames


@pytest.mark.parametrize("backend", ["mooncake", "ascend"])
def test_three_ascii_frames(backend: str) -> None:
    assert failed_frames(Notice(4711, 3, "queue full", backend)) == [b"4711", b"0", b"3"]


@given(st.integers(0, ROOM_LIMIT - 1), st.integers(0, 4096), st.text())
def test_decode_reads_the_numbers_back(room: int, rank: int, cause: str) -> None:
    """sglang's decode thread takes exactly three frames and applies int() to each after ascii decoding."""
    frames = failed_frames(Notice(room, rank, cause))

    assert [int(frame.decode("ascii")) for frame in frames] == [room, 0, rank]
