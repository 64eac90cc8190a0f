"""Decode as the ranks meet it: endpoints that speak sglang's frames, over a pool of real bytes that prefill's
transfers write into."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from sidecar.model import Notice
from sidecar.wire.kv_status import failed_frames
from tests.engine.ranks.company import Company, Member
from tests.engine.ranks.spec import HEAD_BYTES, PAGES, kv_byte
from tests.engine.ranks.transfers import decode_base, pool_bytes

LIMIT_MS = 10_000
QUIET_MS = 50
FAILED = 0


class DecodeRank:
    """Listens where a real decode rank does, and registers its pool as one does."""

    def __init__(self, context: zmq.Context[Any], number: int, directory: Path) -> None:
        self.number = number
        self._context = context
        self.listener = context.socket(zmq.PULL)
        self.port = self.listener.bind_to_random_port("tcp://127.0.0.1")
        self.session = f"127.0.0.1:{self.port}"
        self.path = directory / f"pool{number}-{self.port}"
        self.path.write_bytes(bytes(pool_bytes()))
        self.pool = np.memmap(self.path, dtype=np.uint8, mode="r+", shape=(pool_bytes(),))
        self._prefill: dict[Member, zmq.Socket[Any]] = {}

    def meet(self, prefill: Member, *, tp_size: int) -> None:
        """Registration, once for each prefill rank."""
        prefill.map_decode(self.number, str(self.path))
        socket = self._context.socket(zmq.PUSH)
        socket.connect(f"tcp://127.0.0.1:{prefill.port()}")
        self._prefill[prefill] = socket
        base = decode_base(self.number)
        pointers = struct.pack("2Q", base, base + pool_bytes() // 2)
        socket.send_multipart(
            [
                b"None",
                b"127.0.0.1",
                b"%d" % self.port,
                self.session.encode(),
                pointers,
                b"",
                b"",
                b"%d" % self.number,
                b"%d" % tp_size,
                b"%d" % HEAD_BYTES,
            ]
        )

    def shake(self, prefill: Member, room: int, pages: np.ndarray[Any, Any], *, required: int = 1) -> None:
        self._prefill[prefill].send_multipart(self.metadata(room, pages, required=required))

    def metadata(self, room: int, pages: np.ndarray[Any, Any], *, required: int = 1) -> list[bytes]:
        return [
            b"%d" % room,
            b"127.0.0.1",
            b"%d" % self.port,
            self.session.encode(),
            pages.astype(np.int32).tobytes(),
            b"0",
            b"",
            b"%d" % required,
            b"0",
            b"",
        ]

    def abort(self, prefill: Member, room: int) -> None:
        self._prefill[prefill].send_multipart([b"ABORT", b"%d" % room, b"127.0.0.1", b"%d" % self.port])

    def abort_is_acknowledged(self, prefill: Member, room: int) -> bool:
        """Decode gives the room up. The answer shows that the prefill rank has dealt with all that was sent before."""
        self.abort(prefill, room)
        assert self.listener.poll(LIMIT_MS), "no answer to decode's abort"
        return self.listener.recv_multipart() == [b"ABORT_ACK", b"%d" % room]

    def bytes_in(self, page: int) -> set[int]:
        """All that is in a page's K and V."""
        halves = self.pool.reshape(2, PAGES + 1, HEAD_BYTES)
        return set(halves[:, page].ravel().tolist())

    def hears(self) -> list[tuple[int, int, int]]:
        """Statuses that have come so far, and those that come within a short while: (room, status, prefill rank)."""
        heard = []
        while self.listener.poll(QUIET_MS):
            frames = self.listener.recv_multipart()
            if frames[0] != b"ABORT_ACK":
                heard.append((int(frames[0]), int(frames[1]), int(frames[2])))
        return heard

    def hear(self) -> tuple[int, int, int]:
        assert self.listener.poll(LIMIT_MS), "decode heard nothing"
        frames = self.listener.recv_multipart()
        return int(frames[0]), int(frames[1]), int(frames[2])

    def close(self) -> None:
        for socket in (self.listener, *self._prefill.values()):
            socket.close(linger=0)


class Decode:
    """A decode server of as many ranks as prefill has in attention TP, each fed by the prefill ranks of its own TP
    rank. Its pages are sglang's allocator's; all ranks allocate alike."""

    def __init__(self, company: Company, directory: Path) -> None:
        self._context = zmq.Context()
        self._company = company
        self.ranks = [DecodeRank(self._context, number, directory) for number in range(company.layout.tp)]
        self.allocator = TokenToKVPoolAllocator(PAGES, torch.float16, "cpu", None, False)
        self.pages: dict[int, np.ndarray[Any, Any]] = {}
        self.meet(company)

    def senders(self, company: Company) -> list[Member]:
        return [each for each in company if company.layout.place(each.number).sends]

    def fed_by(self, prefill: Member) -> DecodeRank:
        return self.ranks[prefill.number % len(self.ranks)]

    def meet(self, company: Company) -> None:
        for prefill in self.senders(company):
            self.fed_by(prefill).meet(prefill, tp_size=company.layout.tp)

    def occupy(self, pages: int) -> None:
        """Pages that other requests hold for good."""
        assert self.allocator.alloc(pages) is not None

    def reserve(self, room: int, tokens: int) -> bool:
        pages = self.allocator.alloc(tokens)
        if pages is None:
            return False
        self.pages[room] = pages.numpy()
        return True

    def shake(self, room: int, tokens: int, *, only: int | None = None, company: Company | None = None) -> None:
        """Decode takes pages for the request and tells all prefill ranks, or one only so far."""
        assert room in self.pages or self.reserve(room, tokens), "decode's pool is full"
        told = [each for each in self.senders(company or self._company) if only is None or each.number == only]
        for prefill in told:
            self.fed_by(prefill).shake(prefill, room, self.pages[room])
        for prefill in told:
            prefill.shaken(room)

    def notify(self, number: int, room: int, prefill_rank: int) -> None:
        """The sidecar's notice to rank `number`, on the wire."""
        notice = Notice(prefill_rank=prefill_rank, cause="")
        socket = self._context.socket(zmq.PUSH)
        socket.connect(f"tcp://127.0.0.1:{self.ranks[number].port}")
        socket.send_multipart(failed_frames(room, notice))
        socket.close(linger=LIMIT_MS)

    def take_statuses(self) -> None:
        """As decode up to 0.5.20 does: the first Failed that any rank hears of frees the pages on all of them."""
        for rank in self.ranks:
            for room, status, _ in rank.hears():
                if status == FAILED and room in self.pages:
                    self.free(room)

    def free(self, room: int) -> None:
        self.allocator.free(torch.from_numpy(self.pages.pop(room)))

    def holds(self, rid: str, room: int) -> bool:
        """The KV of the room's pages is, on every rank, what prefill's forward of `rid` left."""
        return all(self.is_of(rid, position, page) for position, page in enumerate(self.pages[room].tolist()))

    def is_of(self, rid: str, position: int, page: int) -> bool:
        return all(rank.bytes_in(page) == {kv_byte(rid, position, rank.number)} for rank in self.ranks)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self._context.term()
