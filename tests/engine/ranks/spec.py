"""What a rank process is told when it begins, and how it is asked for things."""

from dataclasses import dataclass
from typing import Any

PAGES = 256
"""Token slots of each KV pool, prefill's and decode's; a page is one token."""

HEAD_BYTES = 32
"""Bytes of one token in one layer's K, and in its V."""

SLOTS = 80
"""Metadata slots, and the most requests at a time."""

DRAIN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the groups; a rank's number counts TP fastest, then CP, then DP, as sglang's does.

    `all_cp`: every CP rank sends its share of the pages (SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER), not the first
    alone.
    """

    tp: int = 2
    cp: int = 1
    dp: int = 1
    all_cp: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.dp

    def place(self, number: int) -> "Place":
        return Place(tp=number % self.tp, cp=number // self.tp % self.cp, dp=number // (self.tp * self.cp), layout=self)


@dataclass(frozen=True, slots=True)
class Place:
    tp: int
    cp: int
    dp: int
    layout: Layout

    @property
    def sends(self) -> bool:
        return self.cp == 0 or self.layout.all_cp


@dataclass(frozen=True, slots=True)
class RankSpec:
    """`fault`: the guard of the plugin that is taken out (`faults`). `limit_s` bounds each collective: a rank that
    waits longer for the others dies of it, and the test sees that. `sidecar`: the socket that facts go to, else the
    test takes them from the rank."""

    number: int
    layout: Layout
    plugin: bool
    fault: str
    overlap: bool
    chunk: int
    optimistic: int
    limit_s: float
    sidecar: str
    rendezvous: str
    address: str


@dataclass(frozen=True, slots=True)
class Order:
    """`name` is a method of the rank's controls; `iterate` lets the event loop go round once."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Admit:
    """The tokenizer's message for a new request of `tokens` tokens."""

    rid: str
    room: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Abort:
    """An empty rid with `everything` is abort_all."""

    rid: str = ""
    everything: bool = False


Message = Admit | Abort


def kv_byte(rid: str, position: int, rank: int) -> int:
    """What a rank's forward leaves in the KV of a token; never 0, which is untouched memory."""
    return (sum(rid.encode()) * 31 + position * 7 + rank * 113) % 255 + 1
