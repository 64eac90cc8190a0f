"""What stands behind the admin server, on a service that a test has started."""

import contextlib
import time
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from sidecar.shell.admin import AdminServer
from sidecar.shell.descriptors import budget_of
from sidecar.shell.log import Repeats
from sidecar.shell.metrics import Counted, SidecarCollector
from sidecar.shell.pulse import Pulse
from sidecar.shell.status import Bounds, status_document
from sidecar.shell.story import room_document
from sidecar.shell.visitors import Visitors
from tests.shell.scene import Service

BOUNDS = Bounds(descriptors=1024, connections=100, streams=64, records=4096, settle_after_s=5.0, idle_close_s=600.0)


def collector_of(
    service: Service, *, visitors: Visitors | None = None, repeats: Repeats | None = None
) -> SidecarCollector:
    counted = Counted(
        push=service.push,
        ingress=service.ingress,
        pulse=Pulse(loop=service.driver._loop, clock=time.monotonic),  # noqa: SLF001 - the same loop, no more
        repeats=repeats or Repeats(),
        budget=budget_of(1024),
        visitors=lambda: visitors,
    )
    return SidecarCollector(notifier=service.notifier, counted=counted, version="test")


def registry_of(service: Service) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector_of(service))
    return registry


@contextlib.asynccontextmanager
async def admin_of(
    service: Service, *, host: str = "127.0.0.1", visitor_limit: int = 64
) -> AsyncIterator[tuple[AdminServer, int]]:
    """The server and its port."""
    admin = AdminServer(
        before_each=service.ingress.catch_up,
        registry=registry_of(service),
        readiness=lambda: {"ranks": []} if service.ingress.is_serving else None,
        status=lambda: status_document(service.notifier, now=time.monotonic(), bounds=BOUNDS, version="test"),
        trace=lambda room: room_document(service.notifier, room, now=time.monotonic(), wall_s=time.time()),
        visitor_limit=visitor_limit,
    )
    port = await admin.start(host, 0)
    try:
        yield admin, port
    finally:
        await admin.stop()
