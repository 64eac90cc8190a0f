"""sglang's tables of rooms at a prefill manager: keyed by the room alone, and nobody's lock is around them."""

from collections.abc import Sequence
from typing import Any


def purge_tables(manager: Any, room: int) -> bool:
    """Takes a room out of all of them. Answers whether it was in one."""
    tables = (manager.request_status, manager.transfer_infos, manager.req_to_decode_prefix_len)
    found = [table.pop(room, None) is not None for table in tables]
    with manager.failure_lock:
        found.append(manager.failure_records.pop(room, None) is not None)
    return any(found)


class EngineTables:
    """A manager's tables, for ends that come to them from other threads (`senderless.EngineTables`)."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def purge(self, room: int) -> bool:
        return purge_tables(self._manager, room)

    def take_out(self, room: int, sessions: Sequence[str]) -> None:
        manager = self._manager
        met = manager.transfer_infos.get(room)
        if met is None:
            return
        for session in sessions:
            met.pop(session, None)
        if not any(len(met) == endpoint.required_dst_info_num for endpoint in list(met.values())):
            manager.req_to_decode_prefix_len.pop(room, None)
            manager.request_status.pop(room, None)
