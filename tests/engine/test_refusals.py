"""Requests that the scheduler refuses before they have a sender, on sglang's own scheduler and bootstrap queue; stubs;
and the tokenizer process's word on the engine's own bootstrap thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
from sglang.srt.disaggregation.utils import TransferBackend
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from sglang_hooks.door import Door
from sglang_hooks.hooks.refusals import RefusalHooks
from sglang_hooks.hooks.tokenizer import DOOR_ATTRIBUTE
from sidecar.model import DecodeHandshake, Fact, RoomEnded, RoomRefused, TokenizerJoined
from tests.engine.stage import KVPoll, Request, Stage, wait_until
from tests.sglang_hooks.conftest import hello

pytestmark = pytest.mark.engine

ROOM = 4713
CAPACITY = 16


def with_queue(stage: Stage) -> PrefillBootstrapQueue:
    """The real bootstrap queue in the stage's scheduler, with a small KV pool."""
    queue = PrefillBootstrapQueue.__new__(PrefillBootstrapQueue)
    vars(queue).update(
        queue=[],
        kv_manager=stage.manager,
        scheduler=stage.scheduler,
        max_total_num_tokens=CAPACITY,
        max_input_len=CAPACITY,
        transfer_backend=TransferBackend.MOONCAKE,
        bootstrap_port=1,
        tp_rank=0,
        pp_rank=0,
        pp_size=1,
    )
    vars(stage.scheduler).update(
        disagg_prefill_bootstrap_queue=queue,
        enable_priority_scheduling=False,
        abort_on_priority_when_disabled=True,
        model_config=SimpleNamespace(num_key_value_heads=1),
        enable_lmcache=False,
    )
    stage.scheduler.grammar_manager.grammar_queue = []
    return queue


def arriving(tokens: int = 4, **fields: Any) -> Request:
    req = Request("r", ROOM, None, origin_input_ids=[0] * tokens)
    values = {
        "priority": None,
        "sampling_params": SimpleNamespace(max_new_tokens=8),
        "disagg_prefill_dp_rank": None,
        "is_retracted": False,
        **fields,
    }
    vars(req).update(values)
    return req


def add(stage: Stage, req: Request) -> None:
    stage.scheduler._add_request_to_queue(req)  # noqa: SLF001 - the hook point


def told(stage: Stage) -> list[str]:
    return [type(fact).__name__ for fact in stage.facts if getattr(fact, "room", None) == ROOM]


def causes(stage: Stage) -> set[str]:
    return {fact.cause for fact in stage.failures(ROOM)}


def test_more_tokens_than_the_pool_holds(stage: Stage) -> None:
    queue = with_queue(stage)
    first, second = stage.decode(), stage.decode()
    first.handshake(ROOM)
    stage.dealt_with(first)

    add(stage, arriving(CAPACITY + 1))

    assert queue.queue == []
    assert told(stage) == ["DecodeHandshake", "RoomConcluded"]
    assert not stage.knows(ROOM)
    second.handshake(ROOM)
    stage.dealt_with(second)
    assert told(stage)[2:] == ["RoomConcluded", "DecodeHandshake"]
    assert not stage.knows(ROOM)
    ((message, http_status),) = {
        (fact.cause, stage.rank.table.find(ROOM, fact.life).http_status) for fact in stage.failures(ROOM)
    }
    assert "exceeds the maximum number of tokens" in message
    assert http_status == 400


def test_a_priority_where_none_is_taken(stage: Stage) -> None:
    with_queue(stage)

    add(stage, arriving(priority=1))

    assert causes(stage) == {"prefill refused the request"}


def test_what_comes_into_the_queue_is_not_refused(stage: Stage) -> None:
    queue = with_queue(stage)
    req = arriving()

    add(stage, req)

    assert queue.queue == [req]
    assert told(stage) == ["RoomOpened"]


def test_a_sender_that_cannot_be_made_raises_as_in_stock(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler ends over it; decode is then told by its death."""
    queue = with_queue(stage)
    monkeypatch.setattr(queue, "create_sender", lambda *_: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        add(stage, arriving())


def test_one_that_came_in_before_is_ended_with_its_sender(stage: Stage) -> None:
    queue = with_queue(stage)
    req = arriving()
    add(stage, req)
    queue.queue.clear()
    req.origin_input_ids = [0] * (CAPACITY + 1)

    add(stage, req)

    assert [fact.life for fact in stage.failures(ROOM)] == [1]
    assert not stage.knows(ROOM)


def test_stock_leaves_decodes_metadata_in_its_tables(stock: Stage) -> None:
    with_queue(stock)
    decode = stock.decode()
    decode.handshake(ROOM)
    stock.dealt_with(decode)

    add(stock, arriving(CAPACITY + 1))

    assert stock.knows(ROOM)
    assert decode.hears_nothing()


# -- before the queue


def receive(stage: Stage, handle: Callable[[Callable[[Request], None]], object]) -> None:
    """`handle_generate_request`, with `handle` for what stock does inside; it is given the way to the queue."""
    hooks = RefusalHooks()
    stock_add = Scheduler._add_request_to_queue.__wrapped__  # noqa: SLF001 - the hook point

    def queue(req: Request) -> None:
        hooks.around_queueing(stock_add, stage.scheduler, req)

    recv_req = SimpleNamespace(rid="r", bootstrap_room=ROOM)
    hooks.around_arrival(lambda _scheduler, _recv_req: handle(queue), stage.scheduler, recv_req)


def test_what_is_answered_before_the_queue(stage: Stage) -> None:
    with_queue(stage)

    receive(stage, lambda _queue: None)

    assert causes(stage) == {"prefill refused the request"}


def test_a_stub_without_its_room(stage: Stage) -> None:
    """A session that does not exist: stock makes a request anew, without room or bootstrap host."""
    with_queue(stage)
    stub = arriving(bootstrap_room=None)
    stub.to_finish = FINISH_ABORT("session id x does not exist", 400)

    receive(stage, lambda queue: queue(stub))

    assert causes(stage) == {"session id x does not exist"}
    assert {fact.room for fact in stage.facts} == {ROOM}, "a room that is none would break the stream"


def test_what_waits_for_its_grammar_is_not_refused(stage: Stage) -> None:
    with_queue(stage)

    receive(stage, lambda _queue: stage.scheduler.grammar_manager.grammar_queue.append(arriving()))

    assert told(stage) == []


def test_what_is_queued_is_not_refused(stage: Stage) -> None:
    with_queue(stage)

    receive(stage, lambda queue: queue(arriving()))

    assert told(stage) == ["RoomOpened"]


def test_a_fake_bootstrap_host_has_no_life_and_is_not_refused(stage: Stage) -> None:
    """As of /health, which runs a request that nobody waits for."""
    with_queue(stage)
    req = arriving(bootstrap_host="2.2.2.2")

    receive(stage, lambda queue: queue(req))

    assert told(stage) == []


# -- one-token stubs: `set_finish_with_abort`


@pytest.mark.skipif(hasattr(Scheduler, "retire_unadmitted_request"), reason="refused at the queue from 0.5.21")
def test_a_stub_sends_decode_no_page(stage: Stage) -> None:
    """Whatever made it one (length, grammar, sampling mask, session): stock reports its page as Success."""
    with_queue(stage)
    decode = stage.decode()
    req = arriving()
    req.to_finish = FINISH_ABORT("the prompt is too long", 400)
    add(stage, req)
    decode.handshake(ROOM)
    wait_until(lambda: stage.status(ROOM) == KVPoll.WaitingForInput, "no handshake")
    req.metadata_buffer_index = stage.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
    req.disagg_kv_sender.init(1, req.metadata_buffer_index)
    req.pending_bootstrap = False
    stage.scheduler.disagg_prefill_inflight_queue.append(req)

    stage.scheduler.send_kv_chunk(req, last_chunk=True)
    stage.poll_inflight()

    assert stage.transfers.begun == []
    assert causes(stage) == {"the prompt is too long"}
    assert decode.hears_nothing()


@pytest.mark.skipif(not hasattr(Scheduler, "retire_unadmitted_request"), reason="from 0.5.21")
def test_a_stub_is_refused_at_the_queue(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_queue(stage)
    monkeypatch.setattr(stage.scheduler, "retire_unadmitted_request", lambda _req: None)
    req = arriving()
    req.to_finish = FINISH_ABORT("the prompt is too long", 400)

    add(stage, req)

    assert causes(stage) == {"the prompt is too long"}


@pytest.mark.skipif(not hasattr(Scheduler, "_abort_on_waiting_timeout"), reason="up to 0.5.19")
def test_a_request_that_waited_too_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_REQ_WAITING_TIMEOUT", "1")
    decode = stage.decode()
    req = stage.handshaken(ROOM, decode)
    req.time_stats = SimpleNamespace(wait_queue_entry_time=0.001)
    stage.scheduler.waiting_queue.append(req)

    stage.scheduler._abort_on_waiting_timeout()  # noqa: SLF001 - the hook point

    assert stage.scheduler.waiting_queue == []
    assert causes(stage) == {"Request waiting timeout reached."}
    assert not stage.knows(ROOM)


# -- the tokenizer process's word


def word(as_of_s: float, *, accepted_at_s: float = 0.0, refused_until_s: float = 0.0) -> RoomEnded:
    return RoomEnded(ROOM, as_of_s, accepted_at_s, refused_until_s, "too long", 400)


def test_refused_at_the_door_while_decode_waits(stage: Stage) -> None:
    decode = stage.decode()
    decode.handshake(ROOM)
    stage.dealt_with(decode)
    assert stage.knows(ROOM)

    now = stage.rank.clock()
    stage.rank.heard(word(now, refused_until_s=now))

    assert causes(stage) == {"too long"}
    assert not stage.knows(ROOM)


def test_a_held_handshake_goes_on_to_stock_once_a_new_request_was_accepted(stage: Stage) -> None:
    """Nothing of it reaches stock before, and the engine's thread goes on meanwhile."""
    stage.rank.heard(TokenizerJoined())
    stage.rank.refuse(ROOM, "over capacity")
    accepted_at_s = stage.rank.clock()
    decode, other = stage.decode(), stage.decode()
    decode.handshake(ROOM)
    wait_until(lambda: len(stage.rank.senderless.doubts) == 1, "not held")
    other.handshake(ROOM + 1)
    wait_until(lambda: ROOM + 1 in stage.manager.transfer_infos, "the thread waits for the held one alone")
    assert not stage.knows(ROOM)

    stage.rank.heard(word(stage.rank.clock(), accepted_at_s=accepted_at_s))
    req = stage.request(ROOM)

    wait_until(lambda: req.disagg_kv_sender.poll() == KVPoll.WaitingForInput, "never released")
    stage.send(req, 8)
    assert b"%d" % KVPoll.Success == decode.hear()[1]
    (ended,) = stage.failures(ROOM)
    (shaken,) = [fact for fact in stage.facts if isinstance(fact, DecodeHandshake) and fact.room == ROOM]
    assert shaken.life > ended.life


def test_a_held_handshake_that_is_late_never_reaches_stock(stage: Stage) -> None:
    stage.rank.heard(TokenizerJoined())
    stage.rank.refuse(ROOM, "over capacity")
    decode = stage.decode()
    decode.handshake(ROOM)
    wait_until(lambda: len(stage.rank.senderless.doubts) == 1, "not held")

    stage.rank.heard(word(stage.rank.clock()))
    stage.dealt_with(decode)

    assert told(stage)[-1] == "DecodeHandshake"
    assert not stage.knows(ROOM)


def test_only_the_old_requests_metadata_is_taken_out(stage: Stage) -> None:
    old, new = stage.decode(), stage.decode()
    old.handshake(ROOM, required=2)
    stage.dealt_with(old)
    accepted_at_s = stage.rank.clock()
    new.handshake(ROOM, required=2)
    stage.dealt_with(new)
    assert stage.status(ROOM) == KVPoll.WaitingForInput

    stage.rank.heard(word(stage.rank.clock(), accepted_at_s=accepted_at_s, refused_until_s=accepted_at_s))

    assert list(stage.manager.transfer_infos[ROOM]) == [new.session]
    assert stage.status(ROOM) is None, "its fan-in is not complete any more"


# -- the real generate_request


class Tokenizer:
    """`TokenizerManager` without its processes: what its own `generate_request` calls is there."""

    def __init__(self, told: list[Fact]) -> None:
        self.manager = TokenizerManager.__new__(TokenizerManager)
        self.error: Exception | None = None
        self.sent: list[Any] = []
        door = Door(hello=hello(), socket="/nonexistent", record_ttl_s=300.0, on_absent=lambda: None)
        door.emitter.hears_refusals = True
        door.emitter.post = told.append
        self.door = door
        nothing = SimpleNamespace(
            log_received_request=lambda *_: None, wait_for=None, reader_lock=_Open(), enable_strict_thinking=False
        )
        vars(self.manager).update(
            {
                DOOR_ATTRIBUTE: door,
                "auto_create_handle_loop": lambda: None,
                "_set_default_priority": lambda _obj: None,
                "server_args": SimpleNamespace(language_only=False),
                "rid_to_state": {},
                "tokenizer": None,
                "request_logger": nothing,
                "is_pause": False,
                "is_pause_cond": _Open(),
                "model_update_lock": nothing,
                "enable_trace": False,
                "disaggregation_mode": None,
                "_init_req_state": self._note,
                "_validate_and_resolve_lora": self._pass,
                "_tokenize_one_request": self._tokenize,
                "_wait_one_response": self._answer,
                "_send_one_request": self._send,
            }
        )

    def _note(self, obj: Any, *_args: Any) -> None:
        self.manager.rid_to_state[obj.rid] = SimpleNamespace()

    async def _pass(self, _obj: Any) -> None:
        return None

    async def _tokenize(self, obj: Any) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(bootstrap_room=obj.bootstrap_room)

    def _send(self, tokenized: Any) -> None:
        self.manager._dispatch_to_scheduler(tokenized)  # noqa: SLF001 - the hook point

    async def _answer(self, obj: Any, _request: Any) -> AsyncIterator[Any]:
        assert self.door.is_in_use(obj.bootstrap_room)
        yield "answer"


class _Open:
    """A lock or condition that lets everybody pass."""

    async def __aenter__(self) -> "_Open":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def wait_for(self, _claim: Any) -> None:
        return None


def generated() -> Any:
    from sglang.srt.managers.io_struct import GenerateReqInput  # noqa: PLC0415 - heavy

    return GenerateReqInput(text="x", sampling_params={}, rid="r", bootstrap_room=ROOM, bootstrap_host="127.0.0.1")


@pytest.mark.skipif(hasattr(Scheduler, "retire_unadmitted_request"), reason="built for 0.5.18; later ones on a pair")
@pytest.mark.parametrize("error", [None, ValueError("the input is longer than the context")])
def test_sglangs_own_generator_is_watched(
    plugin: Any, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: list[Fact] = []
    tokenizer = Tokenizer(facts)
    tokenizer.error = error
    monkeypatch.setattr(
        "sglang.srt.managers.tokenizer_manager.sock_send", lambda _socket, obj: tokenizer.sent.append(obj)
    )
    vars(tokenizer.manager).update(tokenizer_ipc_name=None, send_to_scheduler=None)

    async def run() -> list[Any]:
        return [output async for output in tokenizer.manager.generate_request(generated())]

    if error is None:
        assert asyncio.run(run()) == ["answer"]
        assert facts == []
    else:
        with pytest.raises(ValueError, match="longer"):
            asyncio.run(run())
        ((fact),) = facts
        assert isinstance(fact, RoomRefused)
        assert (fact.room, fact.cause, fact.http_status) == (ROOM, str(error), 400)
    assert not tokenizer.door.is_in_use(ROOM)


# -- the engine's own timeouts, which from 0.5.20 come as aborts


def test_a_timeout_that_comes_as_an_abort_is_the_cause(stage: Stage) -> None:
    req = stage.handshaken(ROOM, stage.decode())
    stage.scheduler.waiting_queue.append(req)
    reason = {"type": "abort", "status_code": 503, "message": "Request waiting timeout reached."}

    stage.scheduler.abort_request(SimpleNamespace(rid=req.rid, abort_all=False, finished_reason=reason))

    assert causes(stage) == {"Request waiting timeout reached."}
