"""Hooks on sglang's `TokenizerManager` in the prefill role: which requests it accepts, and which it refuses before a
scheduler sees them (too long, bad parameters, a client that left, anything that raises).

What raises before `generate_request` is not seen here: a body that FastAPI cannot read, and what an OpenAI route
refuses or cannot convert. Decode, which is sent the same body, mostly refuses that too.
"""

import os
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from sglang_hooks import causes
from sglang_hooks.contain import contained
from sglang_hooks.door import Door
from sglang_hooks.embedded import on_absent
from sglang_hooks.hooks.refusals import is_room
from sglang_hooks.settings import Settings
from sglang_hooks.uncovered import uncovered
from sglang_hooks.whole_engine import engine_name
from sidecar.model import PROTOCOL, TOKENIZER, Hello

DOOR_ATTRIBUTE = "_pd_sidecar_door"


class TokenizerHooks:
    def __init__(self, *, settings: Settings, sglang: str, verdicts: dict[str, str]) -> None:
        self._settings = settings
        self._sglang = sglang
        self._verdicts = verdicts

    def around_hooks(self) -> dict[str, Callable[..., Any]]:
        return {"tokenizer_request": around_request, "tokenizer_dispatch": around_dispatch}

    def after_hooks(self) -> dict[str, Callable[..., None]]:
        return {"tokenizer_init": self.after_init}

    @contained(otherwise=None)
    def after_init(self, _result: None, manager: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
        """Long before the schedulers have loaded the model: a sidecar that is started here serves when they come."""
        if manager.disaggregation_mode.value != "prefill":
            return
        door = Door(
            hello=self._hello(server_args),
            socket=self._settings.socket,
            record_ttl_s=self._settings.record_ttl_s,
            on_absent=on_absent(self._settings),
        )
        manager.__dict__[DOOR_ATTRIBUTE] = door
        door.emitter.start()

    def _hello(self, server_args: Any) -> Hello:
        serving, disagg = effective_settings(server_args)
        return Hello(
            protocol=PROTOCOL,
            process=uuid.uuid4().hex,
            engine=engine_name(serving.host, disagg.disaggregation_bootstrap_port),
            role=TOKENIZER,
            prefill_rank=0,
            tp_rank=0,
            pp_rank=0,
            dp_rank=0,
            pid=os.getpid(),
            sglang=self._sglang,
            backend=disagg.disaggregation_transfer_backend,
            record_ttl_s=self._settings.record_ttl_s,
            hooks=self._verdicts,
            uncovered=uncovered(server_args, os.environ),
        )


def effective_settings(server_args: Any) -> tuple[Any, Any]:
    """Of serving and of disaggregation, as the ranks of this sglang read them: from 0.5.20 a port may have been chosen
    that the arguments do not name."""
    try:
        from sglang.srt.runtime_context import get_disagg, get_serving  # noqa: PLC0415 - only inside an engine
    except ImportError:
        return server_args, server_args
    return get_serving(), get_disagg()


def door_of(manager: Any) -> Door | None:
    """None for a manager that the plugin did not see being built, or one of another role."""
    door: Door | None = manager.__dict__.get(DOOR_ATTRIBUTE)
    return door


def around_request(
    original: Callable[..., AsyncGenerator[Any, None]], manager: Any, obj: Any, *args: Any, **kwargs: Any
) -> AsyncGenerator[Any, None]:
    outputs = original(manager, obj, *args, **kwargs)
    door = door_of(manager)
    return outputs if door is None else _watched(outputs, door, obj)


async def _watched(outputs: AsyncGenerator[Any, None], door: Door, obj: Any) -> AsyncGenerator[Any, None]:
    twins = twins_of(door, obj)
    try:
        async for output in outputs:
            yield output
    except BaseException as error:
        refuse_rest(door, obj, error)
        raise
    finally:
        finish(door, obj, twins)
        await outputs.aclose()


@contained(otherwise=())
def twins_of(door: Door, obj: Any) -> tuple[int, ...]:
    """Rooms that another request has already: their end is not this one's to tell."""
    return tuple(room for room in rooms_of(obj) if door.is_in_use(room))


@contained(otherwise=None)
def refuse_rest(door: Door, obj: Any, error: BaseException) -> None:
    """Of the requests in `obj` those that no scheduler was sent."""
    for room in rooms_of(obj):
        if not door.is_in_use(room):
            door.refuse(room, _cause(error), _http_status(error))


@contained(otherwise=None)
def finish(door: Door, obj: Any, twins: tuple[int, ...]) -> None:
    for room in rooms_of(obj):
        if room not in twins:
            door.finish(room)


def around_dispatch(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """What a scheduler is sent is accepted before; what then cannot be sent was not."""
    door = door_of(manager)
    if door is None:
        return original(manager, obj)
    accept(door, obj)
    try:
        return original(manager, obj)
    except BaseException:
        finish_dispatched(door, obj)
        raise


@contained(otherwise=None)
def accept(door: Door, obj: Any) -> None:
    for room in _dispatched_rooms(obj):
        door.accept(room)


@contained(otherwise=None)
def finish_dispatched(door: Door, obj: Any) -> None:
    for room in _dispatched_rooms(obj):
        door.finish(room)


def _dispatched_rooms(obj: Any) -> list[int]:
    """Of a tokenized request, a batch of them, or any other order to the schedulers."""
    batch = getattr(obj, "batch", None)
    return rooms_of(obj) if batch is None else [room for one in batch for room in rooms_of(one)]


def rooms_of(obj: Any) -> list[int]:
    """A request has one room, a batch a list. A batch that was refused before sglang had spread its one room over its
    requests is known by the first only."""
    room = getattr(obj, "bootstrap_room", None)
    if isinstance(room, list):
        return [one for one in room if is_room(one)]
    return [room] if is_room(room) else []


def _cause(error: BaseException) -> str:
    if isinstance(error, Exception):
        return str(getattr(error, "detail", "") or error) or causes.REFUSED
    return "prefill's client has left"


def _http_status(error: BaseException) -> int:
    """As sglang's routes answer it."""
    if not isinstance(error, Exception):
        return causes.CLIENT_CLOSED_REQUEST
    if isinstance(error, ValueError):
        return causes.BAD_REQUEST
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else causes.SERVER_ERROR
