"""What the test can ask of a rank between two iterations of its event loop."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.io_struct import AbortReq

from sglang_hooks.contain import FAULTS
from sglang_hooks.hooks.control import ControlMessages
from sglang_hooks.rank import Rank
from tests.engine.ranks.collectives import Collectives, Entry
from tests.engine.ranks.transfers import LIMIT_S, Engine

TABLES = ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len")


def wait_until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.0005)


class Controls:
    def __init__(self, scheduler: Any, manager: Any, engine: Engine, collectives: Collectives, *, sidecar: str) -> None:
        self._scheduler = scheduler
        self._manager = manager
        self._engine = engine
        self._collectives = collectives
        self._rank: Rank | None = vars(manager).get("_pd_sidecar_rank")
        self._facts: list[Any] = []
        if self._rank is None:
            return
        if sidecar:
            self._rank.emitter._path = sidecar  # noqa: SLF001 - where the settings would have said
            self._rank.emitter._thread.start()  # noqa: SLF001 - held back until now
        else:
            self._rank.emitter.post = self._facts.append  # type: ignore[method-assign]
            self._rank.emitter.traffic.connected = True

    # -- what there is

    def port(self) -> int:
        return int(self._manager.rank_port)

    def facts(self) -> list[Any]:
        """Those posted since the last time."""
        taken = list(self._facts)
        del self._facts[: len(taken)]
        return taken

    def answers(self) -> list[tuple[str, str, str]]:
        return list(self._scheduler.answers)

    def answers_but_words(self) -> list[tuple[str, str, str]]:
        """Without messages: a rank that only followed another does not know the cause."""
        return [(rid, kind, "") for rid, kind, _ in self._scheduler.answers]

    def queues(self) -> dict[str, list[str]]:
        scheduler = self._scheduler
        chunked = scheduler.chunked_req
        return {
            "bootstrap": [req.rid for req in scheduler.disagg_prefill_bootstrap_queue.queue],
            "waiting": [req.rid for req in scheduler.waiting_queue],
            "chunked": [] if chunked is None else [chunked.rid],
            "running": [req.rid for req in (scheduler.last_batch.reqs if scheduler.last_batch else ())],
            "inflight": [req.rid for req in scheduler.disagg_prefill_inflight_queue],
        }

    def tables(self, room: int) -> list[str]:
        """The engine's tables that know the room."""
        return [name for name in TABLES if room in getattr(self._manager, name)]

    def status(self, room: int) -> int | None:
        status = self._manager.request_status.get(room)
        return None if status is None else int(status)

    def free(self) -> tuple[int, int]:
        """Pages and metadata slots."""
        scheduler = self._scheduler
        return (
            int(scheduler.token_to_kv_pool_allocator.available_size()),
            int(scheduler.req_to_metadata_buffer_idx_allocator.available_size()),
        )

    def occupy(self, pages: int) -> None:
        """Pages that others hold for good."""
        assert self._scheduler.token_to_kv_pool_allocator.alloc(pages) is not None

    def lives(self) -> dict[str, int]:
        return {} if self._rank is None else self._rank.table.counts()

    def counts(self) -> dict[str, int]:
        return {} if self._rank is None else vars(self._rank.counts).copy()

    def faults(self) -> dict[str, int]:
        return dict(FAULTS)

    def lose_sidecar(self) -> None:
        assert self._rank is not None
        self._rank.emitter.traffic.connected = False

    # -- transfers

    def hold(self) -> None:
        self._engine.hold()

    def let_go(self, outcome: int = 0) -> None:
        self._engine.let_go(outcome)

    def let_one_go(self, outcome: int = 0) -> None:
        self._engine.let_one_go(outcome)

    def map_decode(self, number: int, path: str) -> None:
        self._engine.map_decode(number, path)

    def begun(self, number: int) -> None:
        wait_until(lambda: len(self._engine.transfers) >= number, f"{len(self._engine.transfers)} of {number} begun")

    def transfers(self) -> tuple[int, int]:
        """Begun and finished."""
        return len(self._engine.transfers), self._engine.finished

    def settled(self) -> None:
        """Waits until the transfer workers have come back for more: nothing is queued or held at this rank."""
        queues = self._manager.transfer_queues

        def is_idle(queue: Any) -> bool:
            return not queue._buf and bool(queue._cond._waiters)  # noqa: SLF001 - sglang's queue, Python's condition

        wait_until(lambda: all(map(is_idle, queues)), "transfer workers are busy")

    def shaken(self, room: int, count: int = 1) -> None:
        """Waits until the bootstrap thread has taken the metadata of `count` endpoints."""
        wait_until(lambda: len(self._manager.transfer_infos.get(room, ())) >= count, f"no handshake for {room}")

    def becomes(self, room: int, status: int | None) -> None:
        wait_until(lambda: self.status(room) == status, f"room {room} is at {self.status(room)}, not {status}")

    # -- time and order

    def expire_bootstrap(self) -> None:
        """This rank's clock alone says that decode did not come in time."""
        self._manager.bootstrap_timeout = 0

    def expire_drain(self) -> None:
        assert self._rank is not None
        self._rank._drain_timeout_s = 0.0  # noqa: SLF001 - this rank's clock alone

    def after_next_poll(self, room: int, status: int) -> None:
        """Right after the next reduction and before the engine acts on it, waits for the room to be at `status`: what
        another thread of the engine does at just that moment."""
        self._collectives.after = lambda: self.becomes(room, status)

    # -- the two halves of a poll, as a pipeline stage makes them

    def transferred(self) -> list[str]:
        self._scheduler.pp_group = SimpleNamespace(is_first_rank=True)
        return list(self._scheduler._pp_pd_get_prefill_transferred_ids())  # noqa: SLF001 - sglang's own name

    def pop(self, rids: list[str]) -> list[str]:
        return [req.rid for req in self._scheduler.process_disagg_prefill_inflight_queue(rids)]

    def abort(self, rid: str) -> float:
        """Answers the seconds it took."""
        request = AbortReq(rid=rid)
        began = time.perf_counter()
        self._scheduler.abort_request(request)
        return time.perf_counter() - began

    # -- what the hooks cost

    def chunks(self, room: int, times: int) -> list[float]:
        """Seconds of a chunk's way through a queue of sglang's own, put and got by this thread."""
        queue = type(self._manager.transfer_queues[0])()
        took = []
        for _ in range(times):
            chunk = SimpleNamespace(room=room)
            began = time.perf_counter()
            queue.put(chunk)
            queue.get()
            took.append(time.perf_counter() - began)
        queue.put(SimpleNamespace(room=None))
        queue.get()  # the last one is finished
        return took

    def handshakes(self, messages: list[list[bytes]]) -> list[float]:
        """Seconds of each until the bootstrap thread has it in hand; it is given no further."""
        waiting = iter(messages)
        receive: Callable[[], Any] = lambda: next(waiting)  # noqa: E731 - what the gate wraps
        if self._rank is not None:
            receive = ControlMessages(self._manager, self._rank).gate.wrap(receive)
        took = []
        for _ in messages:
            began = time.perf_counter()
            receive()
            took.append(time.perf_counter() - began)
        return took

    # -- collectives

    def phase(self, name: str) -> None:
        self._collectives.phase = name

    def collectives(self) -> list[Entry]:
        return list(self._collectives.entries)
