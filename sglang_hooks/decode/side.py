"""The plugin's part in a process that decodes: one manager at a time."""

from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from sglang_hooks.contain import FAULTS, contained
from sglang_hooks.decode.control import DecodeControl
from sglang_hooks.decode.half import DecodeHalf, PrefillLine
from sglang_hooks.decode.points import CONNECTION, FAILED_REQUEST
from sglang_hooks.hooks.gate import family_of

ANSWERED_AS_ERRORS = frozenset((HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE))
"""By sglang's HTTP layer in every version. Up to 0.5.22 another status, as 499 for the abort of prefill's client, would
come as 200 without text; and behind a router, which is the client of both, 500 is what it retries."""


class DecodeSide:
    def __init__(self, *, has_half: bool, sglang: str) -> None:
        self._has_half = has_half
        self._sglang = sglang
        self.half: DecodeHalf | None = None
        self.control: DecodeControl | None = None

    def around_hooks(self) -> dict[str, Callable[..., Any]]:
        """By target. None without the half: the guard is put on the manager itself."""
        if not self._has_half:
            return {}
        return {CONNECTION.target: self.around_connection, FAILED_REQUEST.target: self.around_failed_request}

    def attach(self, manager: Any) -> None:
        """Inside the manager's `__init__`, before any thread of it exists."""
        family = family_of(manager)
        if family is None:
            return
        half = DecodeHalf(self._sglang) if self._has_half else None
        control = DecodeControl(manager, family, half)
        control.install()
        self.half, self.control = half, control

    def around_connection(self, original: Callable[..., tuple[Any, Any]], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        socket, lock = original(*args, **kwargs)
        return (socket if self.half is None else PrefillLine(socket, lock, self.half)), lock

    def around_failed_request(
        self, original: Callable[..., None], req: Any, error_message: str, *args: Any, **kwargs: Any
    ) -> None:
        status = self._status_from_prefill(req)
        if status is not None and kwargs.get("status_code") == HTTPStatus.INTERNAL_SERVER_ERROR:
            kwargs["status_code"] = status
        original(req, error_message, *args, **kwargs)

    @contained(otherwise=None)
    def _status_from_prefill(self, req: Any) -> HTTPStatus | int | None:
        """sglang answers every failed transfer with 500; prefill may know better."""
        if self.half is None or req.bootstrap_room is None:
            return None
        status = self.half.http_status(req.bootstrap_room)
        return status if status in ANSWERED_AS_ERRORS else None

    def after_internal_state(self, result: Any) -> None:
        self._report(result)

    @contained(otherwise=None)
    def _report(self, result: Any) -> None:
        if self.control is not None and "pd_sidecar" not in result.internal_state:
            result.internal_state["pd_sidecar"] = self.report()

    def report(self) -> dict[str, Any]:
        """For sglang's `/server_info`."""
        junk = {} if self.control is None else dict(self.control.junk)
        if self.half is None:
            return {"role": "decode", "junk": junk, "faults": dict(FAULTS)}
        counts, rooms = asdict(self.half.counts), self.half.rooms()
        return {"role": "decode", "junk": junk, "half": counts, "rooms": rooms, "faults": dict(FAULTS)}
