"""Reads the event log that the shim writes inside the engines (see shim/pd_sidecar_shim/journal.py)."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Keeps what it has read: each look costs only what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: list[Event] = []
        self._offset = 0

    def all(self, kind: str | None = None, **fields: Any) -> list[Event]:
        """Events in order of writing; `fields` must be equal, e.g. `all("in", role="prefill", room=7)`."""
        self._read_on()
        return [event for event in self._events if _matches(event, kind, fields)]

    async def wait_for(self, kind: str, *, count: int = 1, limit_s: float = 30.0, **fields: Any) -> Event:
        """The count-th such event, waited for if it has not happened yet."""
        deadline = time.monotonic() + limit_s
        while len(found := self.all(kind, **fields)) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {count} events {kind} {fields} in {limit_s:.0f} s")
            await asyncio.sleep(0.005)
        return found[count - 1]

    def _read_on(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            log.seek(self._offset)
            fresh = log.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._events += [json.loads(line) for line in whole.splitlines()]


def _matches(event: Event, kind: str | None, fields: dict[str, Any]) -> bool:
    return (kind is None or event["kind"] == kind) and all(event.get(name) == value for name, value in fields.items())
