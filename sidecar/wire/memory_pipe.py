"""Bytes on their way from one process to another in memory that both have mapped: a write is no system call, and what
was written outlives the writer.

One writer and one reader, and each believes the other's counter only as far as it can be true. The data is stored
before the counter that announces it and loaded after it, so both must run where stores are seen in their order
(x86-64, not arm64).
"""

from sidecar.errors import WireError

PIPE_BYTES = 128 * 1024
"""Of the whole: a thousand facts or so."""

_COUNTERS = 128
"""The writer's and the reader's, each on a cache line of its own."""

_WRITTEN, _READ = 0, 8
"""In words of eight bytes."""


class _Pipe:
    """Two counts of bytes since the beginning, and a place for those in between."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: of PIPE_BYTES, zeros at first."""
        self._counters = memory[:_COUNTERS].cast("Q")
        self._data = memory[_COUNTERS:]
        self._size = len(self._data)
        self._done = 0

    def close(self) -> None:
        """Lets go of the memory."""
        self._counters.release()
        self._data.release()


class PipeWriter(_Pipe):
    def write(self, data: bytes) -> int:
        """How many bytes there was room for. Raises WireError."""
        done, size, count = self._done, self._size, len(data)
        room = self._counters[_READ] + size - done
        if not 0 <= room <= size:
            raise _nonsense(size - room, size)
        if count > room:
            count, data = room, data[:room]
        start = done % size
        end = start + count
        if end <= size:
            self._data[start:end] = data
        else:
            self._data[start:] = data[: size - start]
            self._data[: end - size] = data[size - start :]
        self._done = self._counters[_WRITTEN] = done + count
        return count


class PipeReader(_Pipe):
    """`is_awaited`: the last read has found it so full that the writer may wait for room. By a quarter is enough: what
    was read just before may not yet have been seen by the writer when it found no room.
    """

    is_awaited = False

    def read(self, limit: int) -> bytes:
        """At most so many bytes. Raises WireError."""
        done, size = self._done, self._size
        waiting = self._counters[_WRITTEN] - done
        if not 0 <= waiting <= size:
            raise _nonsense(waiting, size)
        self.is_awaited = waiting >= size // 4
        count = min(waiting, limit)
        start = done % size
        end = start + count
        data = bytes(self._data[start:end])
        if end > size:
            data += self._data[: end - size]
        self._done = self._counters[_READ] = done + count
        return data


def _nonsense(waiting: int, size: int) -> WireError:
    return WireError(f"the shared memory says that {waiting} bytes of {size} wait in it")
