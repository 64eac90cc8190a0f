"""The documents behind /v1: what is known of ranks, endpoints and rooms, and why a notice is still owed."""

from typing import Any

from msgspec.structs import asdict

from sidecar.core.actions import NoticeKey
from sidecar.core.endpoint_queue import Connection, EndpointQueue, NoticeState, OwedNotice
from sidecar.core.notifier import Notifier
from sidecar.core.room import Room

ENDPOINT_LIMIT = 1000


def status_document(notifier: Notifier, *, now: float) -> dict[str, Any]:
    oldest = notifier.outbox.oldest_owed_since
    queues = sorted(notifier.outbox.queues(), key=len, reverse=True)
    return {
        "epoch": notifier.epoch,
        "ranks": [asdict(hello) for hello in notifier.ranks.hellos],
        "rooms": {
            "open": notifier.rooms.open_rooms,
            "records": notifier.rooms.records,
            "tombstones": notifier.rooms.tombstones,
        },
        "owed": {
            "total": len(notifier.outbox),
            "pending": notifier.outbox.pending,
            "oldest_age_s": None if oldest is None else now - oldest,
        },
        "endpoints": [_endpoint(queue, now) for queue in queues[:ENDPOINT_LIMIT]],
        "endpoints_left_out": max(0, len(queues) - ENDPOINT_LIMIT),
    }


def room_document(notifier: Notifier, room: int, *, now: float) -> dict[str, Any]:
    return {"room": room, "lives": [_life(notifier, life, now) for life in notifier.lives_of(room)]}


def _endpoint(queue: EndpointQueue, now: float) -> dict[str, Any]:
    return {
        "host": queue.endpoint.host,
        "port": queue.endpoint.port,
        "connection": queue.connection.value,
        "pending": len(queue.pending),
        "handed_off": len(queue.handed_off),
        "refusals_in_a_row": queue.refusals,
        "retry_in_s": None if queue.retry_at is None or not queue.pending else max(0.0, queue.retry_at - now),
    }


def _life(notifier: Notifier, life: Room, now: float) -> dict[str, Any]:
    connections = {queue.endpoint: queue.connection for queue in notifier.outbox.queues()}
    endpoints = []
    for endpoint, handshake in life.endpoints.items():
        owed = notifier.outbox.find(NoticeKey(life.key, endpoint))
        why = "settled" if handshake.is_settled else "nothing owed"
        if owed is not None:
            why = _why_owed(owed, connections.get(endpoint, Connection.ABSENT))
        endpoints.append(
            {
                "host": endpoint.host,
                "port": endpoint.port,
                "notice": why,
                "hand_offs": owed.hand_offs if owed else None,
                "refusals": owed.refusals if owed else None,
                "expires_in_s": owed.expires_at - now if owed else None,
            }
        )
    return {
        "process": life.key.process,
        "life": life.key.life,
        "state": life.state.value,
        "cause": life.cause,
        "ended_ago_s": now - life.concluded_at_s if life.concluded_at_s else None,
        "endpoints": endpoints,
    }


def _why_owed(owed: OwedNotice, connection: Connection) -> str:
    if owed.state is NoticeState.HANDED_OFF:
        return "handed off; waits for evidence"
    if connection is not Connection.UP:
        return "pending: no connection to the endpoint"
    return "pending: the connection takes no more"
