"""Takes the plugin's part out of the functions that it has hooked, in a running process, and puts it in again: SIGUSR1
and SIGUSR2, to a process that has nothing in hand. Only where PD_SHIM_SWITCH is set. Each time an event `switched` says
that it is done.

sglang's wrappers stay, and hand on: were a class changed each time, Python's caches of all that is looked up on it
would be void, and the next request slow for that alone. Calls through them take some 0.2 us each.
"""

import os
import pkgutil
import signal
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, NamedTuple

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pd_sidecar_shim.journal import note
from pd_sidecar_shim.patching import wrap


class Body(NamedTuple):
    """What one of sglang's wrappers calls, in a cell of that."""

    cell: CellType
    hooked: Callable[..., Any]
    stock: Callable[..., Any]


BODIES: list[Body] = []
GATES: list[tuple[Any, dict[str, Any]]] = []
"""With what each does when it is on."""


def apply() -> None:
    if "PD_SHIM_SWITCH" not in os.environ:
        return
    from sglang_hooks.hooks.gate import Gate  # noqa: PLC0415 - not every venv has the plugin

    wrap(HookRegistry, "apply_hooks", _apply_hooks)
    wrap(Gate, "install", _install_gate)


def _apply_hooks(original: Callable[[], None]) -> None:
    before = set(HookRegistry._patched)  # noqa: SLF001 - there is no other list of them
    original()
    for target in HookRegistry._patched - before:  # noqa: SLF001
        _note(target, HookRegistry._hooks[target])  # noqa: SLF001
    signal.signal(signal.SIGUSR1, lambda *_: _switch(is_on=False))
    signal.signal(signal.SIGUSR2, lambda *_: _switch(is_on=True))


def _note(target: str, hooks: list[tuple[HookType, Callable[..., Any], Any]]) -> None:
    """The last hook of a target is the outermost wrapper."""
    path, name = target.rsplit(".", 1)
    wrapper = vars(pkgutil.resolve_name(path))[name]
    wrapper = getattr(wrapper, "__func__", wrapper)
    for kind, hook, _ in reversed(hooks):
        cell = _cell_of(wrapper, "hook")
        if cell.cell_contents is not hook:
            raise RuntimeError(f"{target} is not wrapped as it was when this was written")
        BODIES.append(Body(cell, hook, _hand_on if kind is HookType.AROUND else _leave))
        wrapper = wrapper.__wrapped__


def _cell_of(wrapper: FunctionType, name: str) -> CellType:
    return dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))[name]


def _hand_on(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _leave(_result: Any, *_: Any, **__: Any) -> None: ...


def _install_gate(original: Callable[[Any], None], gate: Any) -> None:
    original(gate)
    GATES.append((gate, {name: getattr(gate, name) for name in ("_take", "_handled", "_released")}))


def _switch(*, is_on: bool) -> None:
    for body in BODIES:
        body.cell.cell_contents = body.hooked if is_on else body.stock
    for gate, own in GATES:
        vars(gate).update(own if is_on else {"_take": _as_it_is, "_handled": _nothing, "_released": _nothing})
    note("switched", is_on=is_on)


def _as_it_is(frames: Any) -> Any:
    return frames


def _nothing() -> None: ...
