"""Stands between the socket of a manager and the thread of sglang's that serves it, and keeps that thread going."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_hooks.contain import contained, note_fault
from sglang_hooks.dropped import Dropped
from sglang_hooks.messages.values import Family, Reason

logger = logging.getLogger("pd_sidecar")

Frames = list[bytes]

FAMILIES = {"MooncakeKVManager": Family.MOONCAKE, "NixlKVManager": Family.NIXL, "MoriKVManager": Family.MORI}

STARTERS = (
    "start_prefill_thread",
    "start_decode_thread",
    "_start_bootstrap_thread",
    "_start_decode_listener_thread",
    "_start_decode_staging_thread",
)
CLOSURES = frozenset(
    ("bootstrap_thread", "bootstrap_thread_guarded", "decode_thread", "decode_listener_thread", "decode_staging_thread")
)
"""What the starters run in a thread to serve the socket: endless loops that keep nothing from one turn to the next, so
one that has ended may be entered again. Mori's contain their faults themselves."""


def family_of(manager: Any) -> Family | None:
    """None for a backend that the plugin does not know, and for sglang's fake one."""
    names = (FAMILIES.get(base.__name__) for base in type(manager).__mro__)
    return next((family for family in names if family is not None), None)


def is_switchable(manager: Any) -> bool:
    """Whether the thread may have to end although nothing comes (`--enable-pd-role-switch`): its `recv` then returns
    None every half a second, and a message that is kept back must not make it wait for the next one."""
    supports = getattr(manager, "supports_role_switch", False)
    return bool(supports and getattr(manager.server_args, "enable_pd_role_switch", False))


class Gate:
    """`take` looks at a message and answers what stock gets of it, None if nothing. `handled`: stock is done with the
    last one. `released` may wait for the next message, and answers one that was kept back before and may go to stock
    now. None of them raises."""

    def __init__(
        self,
        manager: Any,
        *,
        take: Callable[[Frames], Frames | None],
        handled: Callable[[], None],
        dropped: Dropped,
        released: Callable[[], Frames | None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._take = take
        self._handled = handled
        self._dropped = dropped
        self._released = released
        self._may_wait = not is_switchable(manager)
        self._in_hand: Frames | None = None
        self.is_used = False

    def install(self) -> None:
        """Before the manager's threads exist."""
        socket = self._manager.server_socket
        socket.recv_multipart = self.wrap(socket.recv_multipart)
        for name in STARTERS:
            starter = getattr(self._manager, name, None)
            if starter is not None:
                vars(self._manager)[name] = functools.partial(self._start_lasting, starter)

    def wrap(self, receive: Callable[..., Frames]) -> Callable[..., Frames | None]:
        def recv_multipart(*args: Any, **kwargs: Any) -> Frames | None:
            self.is_used = True
            while True:
                self._handled()
                self._in_hand = self._released()
                if self._in_hand is not None:
                    return self._in_hand
                frames = receive(*args, **kwargs)
                self._in_hand = frames
                taken = self._take(frames)
                if taken is not None or not self._may_wait:
                    return taken

        return recv_multipart

    def _start_lasting(self, starter: Callable[[], object]) -> object:
        """sglang makes the thread inside the starter, out of a closure: the one moment to get at it."""
        with _threads_made_by(starter, self._lasting):
            return starter()

    def _lasting(self, target: Callable[[], object]) -> Callable[[], object]:
        @functools.wraps(target)
        def run() -> object:
            while True:
                try:
                    return target()
                except Exception:
                    if not self._goes_on():
                        raise

        return run

    @contained(otherwise=False)
    def _goes_on(self) -> bool:
        """Not if the socket itself is at fault, or stock is ending the thread."""
        frames = self._in_hand
        if frames is None or getattr(self._manager, "_stopped", False):
            return False
        self._dropped.note(Reason.RAISED, frames)
        logger.debug("pd-sidecar: sglang raised over a control message; its thread goes on", exc_info=True)
        return True


class _Threading:
    """The module `threading`, as sglang's module sees it while a starter runs."""

    def __init__(self, module: Any, lasting: Callable[[Callable[[], object]], Callable[[], object]]) -> None:
        self._module = module
        self._lasting = lasting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Thread(self, *args: Any, **kwargs: Any) -> Any:
        target: Any = kwargs.get("target")
        if getattr(target, "__name__", "") in CLOSURES:
            kwargs["target"] = self._lasting(target)
        return self._module.Thread(*args, **kwargs)


@contextmanager
def _threads_made_by(starter: Any, lasting: Callable[[Callable[[], object]], Callable[[], object]]) -> Iterator[None]:
    names: dict[str, Any] = {}
    try:
        function = inspect.unwrap(getattr(starter, "__func__", starter))
        names = function.__globals__
        module = names["threading"]
        names["threading"] = _Threading(module, lasting)
    except Exception:
        note_fault("Gate._start_lasting")
        yield
        return
    try:
        yield
    finally:
        names["threading"] = module
