"""The tokenizer process: what it accepts and refuses, seen around a generator that ends as sglang's does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.door import REFUSAL_LIMIT, Door
from sglang_hooks.hooks import tokenizer
from sglang_hooks.hooks.tokenizer import DOOR_ATTRIBUTE, TokenizerHooks, around_dispatch, around_request
from sglang_hooks.settings import Settings
from sglang_hooks.whole_engine import VARIABLE, engine_name, engine_name_at_rank, mark_engine
from sidecar.model import (
    PROTOCOL,
    TOKENIZER,
    Fact,
    RoomAnswered,
    RoomEnded,
    RoomQuery,
    RoomRefused,
    TokenizerJoined,
    Welcome,
)
from tests.sglang_hooks.conftest import Clock, hello
from tests.sglang_hooks.doubles import ScriptedSidecar
from tests.sglang_hooks.test_emitter import wait_until

ROOM = 42


class RefusedByRouteError(Exception):
    """As FastAPI's HTTPException: a status, and the cause in `detail`."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__()
        self.status_code = status_code
        self.detail = detail


class Manager:
    """`TokenizerManager` as far as the hooks see it: it may raise before the dispatch or after, and answers in
    parts."""

    def __init__(self) -> None:
        self.dispatched: list[Any] = []
        self.closed = 0
        self.fails_before: BaseException | None = None
        self.fails_at: int | None = None
        self.fails_after: BaseException | None = None
        self.dispatch_fails: BaseException | None = None
        self.gate: asyncio.Event | None = None

    def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        return around_request(Manager._generate, self, obj, request)

    async def _generate(self, obj: Any, _request: Any = None) -> Any:
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.fails_before is not None:
                raise self.fails_before
            rooms = obj.bootstrap_room if isinstance(obj.bootstrap_room, list) else [obj.bootstrap_room]
            for number, room in enumerate(rooms):
                if number == self.fails_at:
                    raise ValueError("the second is too long")
                around_dispatch(Manager.dispatch, self, SimpleNamespace(bootstrap_room=room))
            yield "part"
            if self.fails_after is not None:
                raise self.fails_after
            yield "end"
        finally:
            self.closed += 1

    def dispatch(self, obj: Any) -> None:
        if self.dispatch_fails is not None:
            raise self.dispatch_fails
        self.dispatched.append(obj)


def request(room: Any = ROOM) -> Any:
    return SimpleNamespace(bootstrap_room=room)


@pytest.fixture
def told() -> list[Fact]:
    return []


@pytest.fixture
def door(told: list[Fact], socket_path: Path, clock: Clock) -> Door:
    door = Door(hello=hello(), socket=str(socket_path), record_ttl_s=300.0, on_absent=lambda: None, clock=clock)
    door.emitter.hears_refusals = True
    door.emitter.post = told.append  # type: ignore[method-assign]
    return door


@pytest.fixture
def manager(door: Door) -> Manager:
    manager = Manager()
    vars(manager)[DOOR_ATTRIBUTE] = door
    return manager


async def take(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


def refusals(told: list[Fact]) -> list[tuple[int, str, int]]:
    return [(fact.room, fact.cause, fact.http_status) for fact in told if isinstance(fact, RoomRefused)]


# -- what is refused


async def test_a_served_request_is_no_word_to_anybody(manager: Manager, door: Door, told: list[Fact]) -> None:
    assert await take(manager.generate_request(request())) == ["part", "end"]

    assert told == []
    assert not door.is_in_use(ROOM)
    assert manager.closed == 1


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (ValueError("The input (60 tokens) is longer than the context"), "The input (60 tokens) is longer than", 400),
        (RefusedByRouteError(503, "The request queue is full."), "The request queue is full.", 503),
        (RuntimeError("tokenizer broke"), "tokenizer broke", 500),
        (ValueError(), "prefill refused the request", 400),
    ],
)
async def test_what_is_raised_before_the_dispatch_is_a_refusal(
    manager: Manager, told: list[Fact], error: Exception, cause: str, status: int
) -> None:
    manager.fails_before = error

    with pytest.raises(type(error)):
        await take(manager.generate_request(request()))

    ((room, said, http_status),) = refusals(told)
    assert (room, http_status) == (ROOM, status)
    assert said.startswith(cause)


async def test_what_is_raised_after_it_is_the_schedulers_word(manager: Manager, told: list[Fact]) -> None:
    manager.fails_after = ValueError("aborted")

    with pytest.raises(ValueError, match="aborted"):
        await take(manager.generate_request(request()))

    assert told == []


async def test_of_a_batch_those_are_refused_that_were_not_sent(manager: Manager, told: list[Fact]) -> None:
    manager.fails_at = 1

    with pytest.raises(ValueError, match="too long"):
        await take(manager.generate_request(request([1, 2, 3])))

    assert [room for room, *_ in refusals(told)] == [2, 3]


async def test_a_dispatch_that_fails_was_none(manager: Manager, told: list[Fact]) -> None:
    manager.dispatch_fails = OSError("no scheduler")

    with pytest.raises(OSError, match="no scheduler"):
        await take(manager.generate_request(request()))

    assert refusals(told) == [(ROOM, "no scheduler", 500)]


async def test_a_client_that_leaves_before_the_dispatch(manager: Manager, told: list[Fact]) -> None:
    manager.gate = asyncio.Event()
    task = asyncio.create_task(take(manager.generate_request(request())))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert refusals(told) == [(ROOM, "prefill's client has left", 499)]


async def test_a_client_that_leaves_after_it_closes_sglangs_generator_too(
    manager: Manager, door: Door, told: list[Fact]
) -> None:
    outputs = manager.generate_request(request())
    await anext(outputs)
    assert door.is_in_use(ROOM)

    await outputs.aclose()  # type: ignore[attr-defined]

    assert told == []
    assert manager.closed == 1
    assert not door.is_in_use(ROOM)


async def test_a_twin_of_a_request_at_work_is_no_end_of_the_room(
    manager: Manager, door: Door, told: list[Fact]
) -> None:
    outputs = manager.generate_request(request())
    await anext(outputs)
    manager.fails_before = ValueError("Duplicate request ID")

    with pytest.raises(ValueError, match="Duplicate"):
        await take(manager.generate_request(request()))

    assert told == []
    assert door.is_in_use(ROOM)


@pytest.mark.parametrize("room", [None, "7", -1, 2**63, [None]])
async def test_what_has_no_room_is_left_alone(manager: Manager, told: list[Fact], room: Any) -> None:
    manager.fails_before = ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await take(manager.generate_request(request(room)))

    assert told == []


async def test_a_manager_without_a_door_runs_as_stock() -> None:
    manager = Manager()

    assert await take(manager.generate_request(request())) == ["part", "end"]


async def test_a_fault_of_ours_stays_ours(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "rooms_of", lambda _obj: 1 // 0)
    monkeypatch.setattr(tokenizer, "_dispatched_rooms", lambda _obj: 1 // 0)

    assert await take(manager.generate_request(request())) == ["part", "end"]


def test_a_batch_is_dispatched_in_one(manager: Manager, door: Door) -> None:
    batch = SimpleNamespace(batch=[SimpleNamespace(bootstrap_room=room) for room in (1, 2)])

    around_dispatch(Manager.dispatch, manager, batch)

    assert door.is_in_use(1)
    assert door.is_in_use(2)


# -- what it knows of a room


def answer(door: Door, told: list[Fact]) -> RoomAnswered:
    door.heard(RoomQuery(ROOM))
    assert isinstance(told[-1], RoomAnswered)
    return told[-1]


def test_of_a_room_that_it_has_not(door: Door, told: list[Fact]) -> None:
    assert answer(door, told) == RoomAnswered(1, ROOM, 100.0, 0.0, 0.0, "", 0)


def test_of_a_room_that_it_has(door: Door, told: list[Fact], clock: Clock) -> None:
    door.accept(ROOM)
    clock.now_s = 120.0

    assert answer(door, told) == RoomAnswered(1, ROOM, 120.0, 100.0, 0.0, "", 0)

    door.finish(ROOM)
    assert answer(door, told).accepted_at_s == 0.0


def test_of_a_room_that_it_has_refused(door: Door, told: list[Fact], clock: Clock) -> None:
    door.refuse(ROOM, "too long", 400)
    clock.now_s = 120.0
    assert answer(door, told) == RoomAnswered(2, ROOM, 120.0, 0.0, 120.0, "too long", 400)

    door.accept(ROOM)
    clock.now_s = 130.0
    assert answer(door, told) == RoomAnswered(3, ROOM, 130.0, 120.0, 120.0, "too long", 400)

    door.finish(ROOM)
    assert answer(door, told).refused_until_s == 0.0


def test_what_ranks_are_told_is_not_for_it(door: Door, told: list[Fact]) -> None:
    door.heard(TokenizerJoined())
    door.heard(RoomEnded(ROOM, 1.0, 0.0, 1.0, "", 0))

    assert told == []


# -- bounds, and other versions


def test_refusals_are_kept_for_the_record_ttl(door: Door, clock: Clock) -> None:
    door.refuse(ROOM, "too long", 400)
    assert len(list(door.replay())) == 1

    clock.now_s += 300.0
    assert list(door.replay()) == []


def test_so_many_refusals_are_kept(door: Door) -> None:
    for room in range(REFUSAL_LIMIT + 1):
        door.refuse(room, "too long", 400)

    assert len(list(door.replay())) == REFUSAL_LIMIT
    assert door.counts.refusals_evicted == 1


def test_an_older_sidecar_is_told_nothing(door: Door, told: list[Fact]) -> None:
    """It would break the stream over a message that it does not know."""
    door.emitter.hears_refusals = False

    door.refuse(ROOM, "too long", 400)

    assert told == []
    assert list(door.replay()) == []


@pytest.fixture
def started(socket_path: Path) -> Iterator[Callable[[], Door]]:
    doors: list[Door] = []

    def start() -> Door:
        door = Door(hello=hello(), socket=str(socket_path), record_ttl_s=300.0, on_absent=lambda: None)
        door.emitter.start()
        doors.append(door)
        return door

    yield start
    for door in doors:
        door.emitter.stop(limit_s=10.0)


def test_a_refusal_goes_over_the_stream_and_is_told_again_to_a_new_sidecar(
    socket_path: Path, started: Callable[[], Door]
) -> None:
    welcome = Welcome(PROTOCOL, "epoch", hears_refusals=True)
    with ScriptedSidecar(socket_path, first_reply=welcome) as sidecar:
        door = started()
        assert sidecar.meet().hears_refusals
        wait_until(lambda: door.emitter.traffic.connected, "never connected")
        door.refuse(ROOM, "too long", 400)
        assert refusals(sidecar.hear(1)) == [(ROOM, "too long", 400)]

        sidecar.reply(RoomQuery(ROOM))
        assert isinstance(sidecar.hear(2)[1], RoomAnswered)

        sidecar.drop()
        assert refusals(sidecar.hear(3))[1:] == [(ROOM, "too long", 400)]


# -- where it stands


def settings() -> Settings:
    return Settings(
        disabled=False,
        socket="/nonexistent/s.sock",
        embedded=False,
        drain_timeout_s=30.0,
        record_ttl_s=300.0,
        idle_exit_s=1.0,
    )


@pytest.mark.parametrize(("mode", "has_door"), [("prefill", True), ("decode", False), ("null", False)])
def test_only_a_prefill_server_has_a_door(mode: str, has_door: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "77")
    manager = Manager()
    vars(manager)["disaggregation_mode"] = SimpleNamespace(value=mode)
    hooks = TokenizerHooks(settings=settings(), sglang="0.5.18", verdicts={"a": "found"})
    args = SimpleNamespace(
        host="127.0.0.1",
        disaggregation_bootstrap_port=8998,
        disaggregation_transfer_backend="mooncake",
    )

    hooks.after_init(None, manager, args, None)

    door = vars(manager).get(DOOR_ATTRIBUTE)
    assert (door is not None) is has_door
    if door is not None:
        assert (door.hello().role, door.hello().engine) == (TOKENIZER, "127.0.0.1:8998/77")
        door.emitter.stop(limit_s=10.0)


class TestOneNameForAnEngine:
    """With several DP ranks a rank's parent is a controller, not the main process."""

    def test_the_main_process_leaves_its_number_to_those_it_starts(self) -> None:
        environ: dict[str, str] = {}
        mark_engine(environ)
        inherited = dict(environ)
        mark_engine(inherited)

        assert environ == inherited

    def test_main_and_ranks_use_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "77")

        assert engine_name("h", 1) == engine_name_at_rank("h", 1) == "h:1/77"

    def test_a_rank_that_was_started_by_somebody_else_goes_by_its_parent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.getpid", lambda: 77)
        monkeypatch.setattr("os.getppid", lambda: 70)
        monkeypatch.setenv(VARIABLE, "77")

        assert engine_name_at_rank("h", 1) == "h:1/70"
