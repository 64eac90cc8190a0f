"""What operators get to see over HTTP, put together. Loaded once ranks are served: it takes as long as all the rest."""

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from sidecar.model import TOKENIZER
from sidecar.shell.admin import AdminServer
from sidecar.shell.metrics import Counted, SidecarCollector
from sidecar.shell.status import Bounds, status_document
from sidecar.shell.story import room_document

if TYPE_CHECKING:
    from sidecar.app import Service


def make_admin(service: "Service") -> AdminServer:
    counted = Counted(
        push=service.push,
        ingress=service.ingress,
        pulse=service.pulse,
        repeats=service.repeats,
        budget=service.budget,
        visitors=lambda: admin.visitors,
        spans=service.tracing.counts,
    )
    own = version("pd-sidecar")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SidecarCollector(notifier=service.notifier, counted=counted, version=own))
    admin = AdminServer(
        before_each=service.ingress.catch_up,
        registry=registry,
        readiness=lambda: readiness(service),
        status=lambda: status_document(service.notifier, now=time.monotonic(), bounds=_bounds(service), version=own),
        trace=lambda room: room_document(service.notifier, room, now=time.monotonic(), wall_s=time.time()),
        visitor_limit=service.budget.visitors,
    )
    return admin


def readiness(service: "Service") -> dict[str, Any] | None:
    """The sockets are bound. Which ranks have said hello is told, and is no condition: they come when they come."""
    if not service.ingress.is_serving:
        return None
    hellos = [hello for hello in service.notifier.ranks.hellos if hello.role != TOKENIZER]
    return {"ranks": [{"engine": hello.engine, "prefill_rank": hello.prefill_rank} for hello in hellos]}


def _bounds(service: "Service") -> Bounds:
    config, budget = service.settings.now, service.budget
    return Bounds(
        descriptors=budget.limit,
        connections=budget.connections,
        streams=budget.streams,
        records=config.record_limit,
        settle_after_s=config.settle_after_s,
        idle_close_s=config.idle_close_s,
    )
