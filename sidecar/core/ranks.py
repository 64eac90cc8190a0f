"""Which rank processes have said hello, over which stream, and what only they can tell apart."""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from sidecar.core.room import BuriedEnd, Room
from sidecar.model import DecodeEndpoint, DecodeRegistered, Fact, Hello, Notice

RANK_LIMIT = 1024
"""Processes remembered, connected or not; those that left longest ago are forgotten first."""

REGISTRATION_LIMIT = 8192
"""Decode endpoints whose registration is remembered for each rank."""


class Registration(Struct, frozen=True):
    """The last one of an endpoint at one rank, with the number of its fact (`DecodeRegistered`)."""

    seq: int
    session: str
    frames: int
    decode_half: str


class Rank:
    """`is_dead`: its process has ended for sure, and so has its writing.

    `backend` is that of its hello in lower case. `last_seq` over all its streams tells a replay from news;
    `unacknowledged` is the highest seq of this stream not yet answered.
    """

    def __init__(self, hello: Hello, stream: int) -> None:
        self.last_seq = -1
        self.greet(hello, stream)
        self._registrations: OrderedDict[DecodeEndpoint, Registration] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Rank {self.hello.process} rank={self.hello.prefill_rank} stream={self.stream} seq={self.last_seq}>"

    def greet(self, hello: Hello, stream: int) -> None:
        self.hello = hello
        self.backend = hello.backend.lower()
        self._last_notice: Notice | None = None
        self.stream: int | None = stream
        self.unacknowledged: int | None = None
        self.has_said_goodbye = False
        self.is_dead = False

    def accept(self, facts: Sequence[Fact]) -> set[int]:
        """Those that replay what an earlier stream has brought already, by `id`."""
        replayed: set[int] = set()
        last_seq, highest = self.last_seq, self.unacknowledged
        for fact in facts:
            seq = fact.seq
            if seq > last_seq:
                last_seq = seq
            else:
                replayed.add(id(fact))
            if highest is None or seq > highest:
                highest = seq
        self.last_seq, self.unacknowledged = last_seq, highest
        return replayed

    def notice_of(self, end: Room | BuriedEnd) -> Notice:
        """The same object for ends that are alike: a storm brings thousands of those."""
        last, cause, http_status, drained = self._last_notice, end.cause, end.http_status, end.is_drained
        if last is None or last.cause != cause or last.http_status != http_status or last.drained is not drained:
            last = Notice(self.hello.prefill_rank, cause, self.backend, http_status, drained)
            self._last_notice = last
        return last

    def take_unacknowledged(self) -> int | None:
        seq, self.unacknowledged = self.unacknowledged, None
        return seq

    def registered(self, fact: DecodeRegistered) -> bool:
        """Whether this is news: an older registration, replayed, must not end what a newer one brought.

        A decode half that has announced itself is there for as long as the session is.
        """
        known = self._registrations.get(fact.endpoint)
        if known is not None and fact.seq <= known.seq:
            return False
        announced = fact.decode_half
        if known is not None and known.session == fact.session:
            announced = announced or known.decode_half
        self._registrations[fact.endpoint] = Registration(fact.seq, fact.session, fact.frames, announced)
        self._registrations.move_to_end(fact.endpoint)
        if len(self._registrations) > REGISTRATION_LIMIT:
            self._registrations.popitem(last=False)
        return True

    def registration_of(self, endpoint: DecodeEndpoint) -> Registration | None:
        return self._registrations.get(endpoint)


class RankTable:
    def __init__(self, *, limit: int = RANK_LIMIT) -> None:
        self._limit = limit
        self._by_stream: dict[int, Rank] = {}
        self._by_process: OrderedDict[str, Rank] = OrderedDict()
        self._left: dict[int, Rank] = {}

    def __len__(self) -> int:
        return len(self._by_process)

    def __repr__(self) -> str:
        return f"<RankTable connected={len(self._by_stream)} known={len(self._by_process)}>"

    @property
    def connected(self) -> list[Rank]:
        return list(self._by_stream.values())

    @property
    def hellos(self) -> list[Hello]:
        """Of those connected now."""
        return [rank.hello for rank in self._by_stream.values()]

    @property
    def known(self) -> list[Rank]:
        return list(self._by_process.values())

    def on(self, stream: int) -> Rank | None:
        return self._by_stream.get(stream)

    def of(self, process: str) -> Rank | None:
        return self._by_process.get(process)

    def join(self, hello: Hello, stream: int) -> tuple[Rank, int | None]:
        """The rank, and the stream that this one takes the place of."""
        rank = self._by_process.get(hello.process)
        replaced = rank.stream if rank is not None else None
        if rank is None:
            rank = self._by_process[hello.process] = Rank(hello, stream)
        if replaced is not None:
            del self._by_stream[replaced]
        self._left = {old: left for old, left in self._left.items() if left is not rank}
        rank.greet(hello, stream)
        self._by_process.move_to_end(hello.process)
        self._by_stream[stream] = rank
        return rank, replaced

    def leave(self, stream: int) -> Rank | None:
        """None for a stream that never said hello or whose process has a newer one."""
        rank = self._by_stream.pop(stream, None)
        if rank is not None:
            rank.stream = None
            self._left[stream] = rank
            self._by_process.move_to_end(rank.hello.process)
        return rank

    def die(self, stream: int) -> Rank | None:
        """The process at the other end of a stream that has ended is dead. None when it has come back since, or is
        forgotten."""
        rank = self._left.pop(stream, None)
        if rank is not None:
            rank.is_dead = True
        return rank

    def forget_surplus(self) -> list[Rank]:
        """Those pushed out by the limit. A connected one never is."""
        surplus = len(self._by_process) - self._limit
        if surplus <= 0:
            return []
        gone = [rank for rank in self._by_process.values() if rank.stream is None][:surplus]
        for rank in gone:
            del self._by_process[rank.hello.process]
        self._left = {stream: left for stream, left in self._left.items() if left not in gone}
        return gone
