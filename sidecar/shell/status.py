"""The document behind /v1/status: what is known of ranks, rooms and endpoints, and what bounds it all."""

from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import asdict

from sidecar.core.dialects import Dialect, Ground
from sidecar.core.endpoint_queue import EndpointQueue
from sidecar.core.notifier import Notifier
from sidecar.core.ranks import Registration

ENDPOINT_LIMIT = 1000


class Bounds(Struct, frozen=True, kw_only=True):
    """What was worked out at the start, or reloaded since."""

    descriptors: int
    connections: int
    streams: int
    records: int
    settle_after_s: float
    idle_close_s: float


def status_document(notifier: Notifier, *, now: float, bounds: Bounds, version: str) -> dict[str, Any]:
    oldest = notifier.outbox.oldest_owed_since
    queues = sorted(notifier.outbox.queues(), key=len, reverse=True)
    return {
        "version": version,
        "epoch": notifier.epoch,
        "bounds": asdict(bounds),
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
        "endpoints": [_endpoint(notifier, queue, now) for queue in queues[:ENDPOINT_LIMIT]],
        "endpoints_left_out": max(0, len(queues) - ENDPOINT_LIMIT),
    }


def _endpoint(notifier: Notifier, queue: EndpointQueue, now: float) -> dict[str, Any]:
    dialect, registration = notifier.dialects.of(queue.endpoint)
    return {
        "host": queue.endpoint.host,
        "port": queue.endpoint.port,
        "connection": queue.connection.value,
        "pending": len(queue.pending),
        "handed_off": len(queue.handed_off),
        "refusals_in_a_row": queue.refusals,
        "retry_in_s": None if queue.retry_at is None or not queue.pending else max(0.0, queue.retry_at - now),
        "takes": dialect.form.value,
        "holds_pages": dialect.holds_pages,
        "believed_by": believed_by(dialect, registration),
        "is_in_doubt": registration is not None and queue.sure_session != registration.session,
    }


def believed_by(dialect: Dialect, registration: Registration | None) -> str:
    """Why an endpoint is taken to speak that dialect, in words."""
    frames = f"registered with {registration.frames} frames" if registration else "no registration heard"
    match dialect.ground:
        case Ground.DECODE_HALF:
            return f"its decode half, in sglang {dialect.sglang or 'of an unknown version'}; {frames}"
        case Ground.SETTING:
            return f"decode_sglang {dialect.sglang}; {frames}"
        case Ground.REGISTRATION:
            return f"{frames}: {dialect.sglang} or newer"
        case Ground.NOTHING:
            return f"{frames}: nothing known"
        case _:
            assert_never(dialect.ground)
