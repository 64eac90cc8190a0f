"""In the vendor library's place: each transfer waits at a gate, then copies real bytes from prefill's pool to
decode's."""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.engine.ranks.spec import HEAD_BYTES, PAGES

LIMIT_S = 20.0
DECODE_SPAN = 1 << 32
"""Each decode rank's pool has addresses of its own, far from any real one."""


def decode_base(number: int) -> int:
    return DECODE_SPAN * (number + 1)


def pool_bytes() -> int:
    """One layer: all K, then all V; slot 0 is sglang's padding."""
    return 2 * (PAGES + 1) * HEAD_BYTES


@dataclass
class Transfer:
    """One batch on its way. `outcome` is what the vendor's call returns: not 0 is a failure, and copies nothing."""

    may_go: threading.Event = field(default_factory=threading.Event)
    outcome: int = 0


class Engine:
    """`batch_transfer_sync` of Mooncake's engine, and the gate."""

    def __init__(self) -> None:
        self._pools: dict[int, np.memmap] = {}
        self._lock = threading.Lock()
        self._held = False
        self._outcome = 0
        self.transfers: list[Transfer] = []
        self.finished = 0

    def map_decode(self, number: int, path: str) -> None:
        self._pools[number] = np.memmap(path, dtype=np.uint8, mode="r+", shape=(pool_bytes(),))

    def batch_register(self, _pointers: Sequence[int], _lengths: Sequence[int]) -> int:
        return 0

    def get_session_id(self) -> str:
        return "127.0.0.1:1"

    def batch_transfer_sync(
        self, _session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        transfer = Transfer()
        with self._lock:
            self.transfers.append(transfer)
            if not self._held:
                transfer.outcome = self._outcome
                transfer.may_go.set()
        assert transfer.may_go.wait(LIMIT_S), "a transfer was held too long"
        if transfer.outcome == 0:
            for source, target, length in zip(sources, targets, lengths, strict=True):
                ctypes.memmove(self._local(target), source, length)
        with self._lock:
            self.finished += 1
        return transfer.outcome

    def hold(self) -> None:
        with self._lock:
            self._held = True

    def let_go(self, outcome: int) -> None:
        """Everything held, and whatever comes after."""
        with self._lock:
            self._held = False
            for transfer in self.transfers:
                if not transfer.may_go.is_set():
                    transfer.outcome = outcome
                    transfer.may_go.set()

    def let_one_go(self, outcome: int) -> None:
        """The oldest held one; what comes after it is held."""
        with self._lock:
            transfer = next(each for each in self.transfers if not each.may_go.is_set())
            transfer.outcome = outcome
            transfer.may_go.set()

    def fail_from_now_on(self) -> None:
        with self._lock:
            self._outcome = -1

    def _local(self, target: int) -> int:
        number, offset = target // DECODE_SPAN - 1, target % DECODE_SPAN
        return int(self._pools[number].ctypes.data) + offset
