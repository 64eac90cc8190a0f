"""Bytes through shared memory: what goes in comes out, in order and whole, and what the other end says is believed only
as far as it can be true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import WireError
from sidecar.wire.memory_pipe import PIPE_BYTES, PipeReader, PipeWriter

COUNTERS = 128
ROOM = PIPE_BYTES - COUNTERS
WRITTEN, READ = 0, 64
"""Where the counters are, in bytes."""


def pipe(size: int = PIPE_BYTES) -> tuple[PipeWriter, PipeReader, bytearray]:
    memory = bytearray(size)
    return PipeWriter(memoryview(memory)), PipeReader(memoryview(memory)), memory


def write_count(memory: bytearray, at: int, count: int) -> None:
    memory[at : at + 8] = count.to_bytes(8, "little")


@given(st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 40)), max_size=60))
def test_it_is_a_pipe(steps: list[bytes | int]) -> None:
    """Of 24 bytes, so that it is full, empty and wraps around all the time: against a bytearray."""
    writer, reader, _ = pipe(COUNTERS + 24)
    waiting = bytearray()
    for step in steps:
        if isinstance(step, bytes):
            count = writer.write(step)
            assert count == min(len(step), 24 - len(waiting))
            waiting += step[:count]
        else:
            is_awaited = len(waiting) >= 6
            assert reader.read(step) == waiting[:step]
            assert reader.is_awaited == is_awaited
            del waiting[:step]


def test_a_writer_that_has_not_seen_the_last_read_is_told_of_the_next() -> None:
    """It finds no room by the count that it sees, though the reader has read some since: for that it was never full."""
    writer, reader, memory = pipe()
    writer.write(bytes(ROOM))
    before = memory[READ : READ + 8]
    reader.read(65_536)
    after, memory[READ : READ + 8] = memory[READ : READ + 8], before
    assert writer.write(b"1") == 0
    memory[READ : READ + 8] = after

    reader.read(65_536)
    assert reader.is_awaited
    assert writer.write(b"1") == 1


def test_it_takes_what_it_has_room_for() -> None:
    writer, reader, _ = pipe()
    assert writer.write(bytes(2 * ROOM)) == ROOM
    assert writer.write(b"1") == 0

    assert len(reader.read(10)) == 10
    assert writer.write(b"1" * 20) == 10
    assert reader.read(PIPE_BYTES)[-10:] == b"1" * 10


@pytest.mark.parametrize("written", [ROOM + 1, 2**64 - 1])
def test_a_reader_does_not_believe_in_more_than_there_is_place_for(written: int) -> None:
    _, reader, memory = pipe()
    write_count(memory, WRITTEN, written)

    with pytest.raises(WireError, match="wait in it"):
        reader.read(100)


def test_a_reader_does_not_believe_that_it_has_read_what_was_not_written() -> None:
    writer, reader, memory = pipe()
    writer.write(b"12345")
    reader.read(5)
    write_count(memory, WRITTEN, 4)

    with pytest.raises(WireError, match="-1 bytes"):
        reader.read(100)


@pytest.mark.parametrize("read", [1, 2**64 - 1])
def test_a_writer_does_not_believe_that_what_it_has_not_written_was_read(read: int) -> None:
    writer, _, memory = pipe()
    write_count(memory, READ, read)

    with pytest.raises(WireError, match="wait in it"):
        writer.write(b"1")


def test_neither_lets_the_other_take_back_what_it_has_said() -> None:
    writer, reader, memory = pipe()
    writer.write(b"1" * ROOM)
    reader.read(10)
    writer.write(b"2" * 10)
    write_count(memory, READ, 5)

    with pytest.raises(WireError, match="wait in it"):
        writer.write(b"3")


def test_whoever_is_done_with_it_lets_go_of_the_memory() -> None:
    writer, reader, memory = pipe()
    with pytest.raises(BufferError):
        memory.append(0)
    writer.close()
    reader.close()
    memory.append(0)
