"""The story of a room, for whoever asks why decode did or did not hang: what happened when, and where each endpoint
stands, in words.
"""

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from sidecar.core.endpoint_queue import Connection
from sidecar.core.keys import NoticeKey, Outcome
from sidecar.core.notifier import Notifier
from sidecar.core.owed import NoticeState, OwedNotice
from sidecar.core.room import TOLD_STATES, Handshake, Room, RoomState
from sidecar.model import DecodeEndpoint, Form

Document = dict[str, Any]


def room_document(notifier: Notifier, room: int, *, now: float, wall_s: float) -> Document:
    """`wall_s` is the calendar's time at `now`."""
    return {
        "room": room,
        "at": _calendar(wall_s),
        "lives": [_Life(notifier, life, now, wall_s).document() for life in notifier.lives_of(room)],
    }


def _calendar(wall_s: float) -> str:
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC).isoformat(timespec="milliseconds")


class _Life:
    def __init__(self, notifier: Notifier, room: Room, now: float, wall_s: float) -> None:
        self._notifier = notifier
        self._room = room
        self._now = now
        self._wall_s = wall_s

    def document(self) -> Document:
        room = self._room
        rank = self._notifier.ranks.of(room.key.process)
        has_ended = room.state is not RoomState.OPEN
        return {
            "process": room.key.process,
            "life": room.key.life,
            "engine": rank.hello.engine if rank else None,
            "prefill_rank": rank.hello.prefill_rank if rank else None,
            "state": room.state.value,
            "is_early": not (has_ended or room.opened_at_s),
            "cause": room.cause,
            "http_status": room.http_status or None,
            "ended_ago_s": self._ago(room.concluded_at_s) if has_ended else None,
            "end_took_s": room.concluded_at_s - room.end_began_at_s if room.end_began_at_s else None,
            "forgotten_in_s": room.expires_at - self._now if room.expires_at else None,
            "owed": room.owed,
            "endpoints": [self._endpoint(shaken) for shaken in room.handshakes],
            "events": self._events(),
        }

    def _ago(self, at: float) -> float | None:
        return self._now - at if at else None

    def _endpoint(self, shaken: Handshake) -> Document:
        endpoint = shaken.endpoint
        owed = self._notifier.outbox.find(NoticeKey(self._room.key, endpoint))
        notice = owed or shaken.told
        queue = self._notifier.outbox.queue_of(endpoint)
        connection = queue.connection if queue else Connection.ABSENT
        return {
            "host": endpoint.host,
            "port": endpoint.port,
            "shook_hands_ago_s": self._ago(shaken.at_s),
            "gave_up_ago_s": self._ago(shaken.aborted_at_s),
            "notice": _state_of(notice),
            "form": notice.form.value if notice and notice.hand_offs else None,
            "hand_offs": notice.hand_offs if notice else 0,
            "refusals": notice.refusals if notice else 0,
            "first_hand_off_ago_s": self._ago(notice.first_handed_off_at) if notice else None,
            "last_hand_off_ago_s": self._ago(notice.last_handed_off_at) if notice else None,
            "last_refusal_ago_s": self._ago(notice.refused_at) if notice else None,
            "expires_in_s": owed.expires_at - self._now if owed else None,
            "connection": connection.value,
            "in_words": self._in_words(shaken, notice, connection),
        }

    def _in_words(self, shaken: Handshake, notice: OwedNotice | None, connection: Connection) -> str:
        if notice is None:
            return _without_a_notice(self._room, shaken)
        if notice.outcome is not None:
            return f"{_told(notice)}; {_ENDS[notice.outcome](notice)}"
        if notice.state is NoticeState.HANDED_OFF:
            return f"{_told(notice)}; waits for evidence that it arrived"
        why = "the connection takes no more" if connection is Connection.UP else "no connection to the endpoint"
        tries = f"{notice.refusals} attempts refused, goes on for {notice.expires_at - self._now:.0f} s"
        return f"{_told(notice)}; owed: {why} ({tries})"

    # -- events

    def _events(self) -> list[Document]:
        dated = [(at, text, endpoint) for at, text, endpoint in happened(self._notifier, self._room) if at]
        return [
            {
                "at": _calendar(self._wall_s - (self._now - at)),
                "ago_s": self._now - at,
                "endpoint": f"{endpoint.host}:{endpoint.port}" if endpoint else None,
                "event": text,
            }
            for at, text, endpoint in sorted(dated, key=lambda event: event[0])
        ]


Happening = tuple[float, str, DecodeEndpoint | None]


def happened(notifier: Notifier, room: Room) -> Iterator[Happening]:
    """When (0: never), what, and at which endpoint; in no order."""
    if room.known_since_s != room.opened_at_s:
        yield room.known_since_s, "first heard of", None
    yield room.opened_at_s, "prefill has the request", None
    yield room.end_began_at_s, "prefill began to give it up", None
    yield room.concluded_at_s, _END_EVENTS.get(room.state, ""), None
    for shaken in room.handshakes:
        endpoint = shaken.endpoint
        yield shaken.at_s, "shook hands", endpoint
        yield shaken.aborted_at_s, "gave the request up (ABORT)", endpoint
        notice = notifier.outbox.find(NoticeKey(room.key, endpoint)) or shaken.told
        if notice is not None:
            yield from _of_notice(notice, endpoint)


def _of_notice(notice: OwedNotice, endpoint: DecodeEndpoint) -> Iterator[Happening]:
    yield notice.refused_at, f"refused an attempt, the last of {notice.refusals}", endpoint
    yield notice.first_handed_off_at, "first hand-off", endpoint
    if notice.hand_offs > 1:
        yield notice.last_handed_off_at, f"hand-off {notice.hand_offs}, the last", endpoint
    if notice.outcome is not None:
        yield notice.ended_at, f"over: {notice.outcome.value}", endpoint


_END_EVENTS = {
    RoomState.FAILED: "given up: drained, nothing more is written",
    RoomState.UNDRAINED: "given up: not drained in time, prefill may still be writing",
    RoomState.SUCCEEDED: "the transfer succeeded",
}


def _state_of(notice: OwedNotice | None) -> str:
    if notice is None:
        return "none"
    return notice.outcome.value if notice.outcome else notice.state.value


def _told(notice: OwedNotice) -> str:
    if not notice.hand_offs:
        return "not told"
    after_ms = 1000 * (notice.first_handed_off_at - notice.owed_since)
    again = f", {notice.hand_offs} times in all" if notice.hand_offs > 1 else ""
    return f"told {_WHAT[notice.form]}{after_ms:.1f} ms after it could be{again}"


_WHAT = {Form.BARE: "", Form.CAUSE: "the cause ", Form.STATUS: "cause and status "}


def _unless_told(told: str, untold: str) -> Callable[[OwedNotice], str]:
    return lambda notice: told if notice.hand_offs else untold


_ENDS: dict[Outcome, Callable[[OwedNotice], str]] = {
    Outcome.HELD_UP: lambda _: "the connection stayed up, so it counts as arrived",
    Outcome.DECODE_ABORTED: _unless_told("its own ABORT came back: it knows", "it gave the request up itself"),
    Outcome.ACKNOWLEDGED: lambda _: "it acknowledged",
    Outcome.RESTARTED: lambda _: "it has restarted since, nobody waits there",
    Outcome.SUPERSEDED: lambda _: "the room is in use again, so it is not told any more",
    Outcome.EXPIRED: _unless_told(
        "no evidence came until its own timeout", "it could not be reached until its own timeout: it hung"
    ),
    Outcome.DROPPED: _unless_told("pushed out by a limit before there was evidence", "pushed out by a limit: it hangs"),
}

_WITHOUT = {
    RoomState.SUCCEEDED: "the transfer succeeded: decode has what it waited for",
    RoomState.UNDRAINED: "not told: prefill may still be writing to its memory, which it is not known to hold; its own "
    "timeout ends it",
}


def _without_a_notice(room: Room, shaken: Handshake) -> str:
    if room.state is RoomState.OPEN and shaken.is_settled:
        return "gave the request up itself: nothing to tell"
    if room.state is RoomState.OPEN:
        return "waits: prefill serves the request" if room.opened_at_s else "waits: prefill has not taken the request"
    if shaken.is_settled and room.state in TOLD_STATES:
        return "nothing owed: it was told before, gave up itself, or has restarted"
    return _WITHOUT.get(room.state, "not told: no status message is known that its transfer backend takes")
