"""One line for each life of a room that ended without success, once nothing is owed for it any more."""

from collections import Counter
from typing import Any

import structlog

from sidecar.core.notifier import Notifier
from sidecar.core.room import Room, RoomState
from sidecar.shell.log import ADMITTED, Repeats

EVENT = "life ended"
CAUSE_LIMIT = 200
"""Characters of a cause in a line: an engine's error text may quote its input."""


class LifeLog:
    """A storm of ends costs no more than the lines that are written: the others are only counted."""

    def __init__(self, notifier: Notifier, repeats: Repeats) -> None:
        self._notifier = notifier
        self._repeats = repeats
        self._log = structlog.get_logger("sidecar")

    def report(self, finished: list[Room]) -> None:
        """A late handshake makes a life owe a notice again; its line then comes again."""
        for number, room in enumerate(finished):
            if not self._repeats.admits(EVENT):
                self._repeats.suppress(EVENT, len(finished) - number - 1)
                return
            self._log.info(EVENT, **{ADMITTED: True}, **self._line(room))

    def _line(self, room: Room) -> dict[str, Any]:
        rank = self._notifier.ranks.of(room.key.process)
        return {
            "room": room.key.room,
            "life": room.key.life,
            "process": room.key.process,
            "prefill_rank": rank.hello.prefill_rank if rank else None,
            "cause": room.cause[:CAUSE_LIMIT],
            "http_status": room.http_status or None,
            "drained": room.state is RoomState.FAILED,
            "end_took_s": round(room.concluded_at_s - room.end_began_at_s, 6) if room.end_began_at_s else None,
            "endpoints": room.endpoint_count,
            "still_owed": room.owed,
            **_of_notices(room),
        }


def _of_notices(room: Room) -> dict[str, Any]:
    """Times are from when the end and the handshake were both known, to the last of them."""
    told = room.told
    hand_offs = [owed.last_handed_off_at - owed.owed_since for owed in told if owed.hand_offs]
    settled = [owed.ended_at - owed.owed_since for owed in told if owed.outcome and owed.outcome.is_settled]
    return {
        "outcomes": dict(Counter(owed.outcome.value for owed in told if owed.outcome)),
        "forms": dict(Counter(owed.form.value for owed in told if owed.hand_offs)),
        "hand_offs": sum(owed.hand_offs for owed in told),
        "refusals": sum(owed.refusals for owed in told),
        "to_last_hand_off_s": round(max(hand_offs), 6) if hand_offs else None,
        "to_settled_s": round(max(settled), 6) if settled else None,
    }
