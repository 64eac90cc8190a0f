"""HTTP for operators: /metrics, /healthz (the loop turns), /readyz (served, and by whom), /v1/status and
/v1/rooms/{room}. Read only.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Document = dict[str, Any]

REQUEST_LIMIT_BYTES = 16 * 1024


class AdminServer:
    """`status` and `trace` make the documents; nothing here knows what is in them."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        status: Callable[[], Document],
        trace: Callable[[int], Document],
    ) -> None:
        self._registry = registry
        self._is_ready = is_ready
        self._status = status
        self._trace = trace
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """The port served. Raises OSError when it cannot be had."""
        app = web.Application(client_max_size=REQUEST_LIMIT_BYTES)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/v1/status", self._v1_status)
        app.router.add_get(r"/v1/rooms/{room:\d{1,19}}", self._v1_room)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, keepalive_timeout=15.0, shutdown_timeout=0.5
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, backlog=64).start()
        except OSError:
            await self.stop()
            raise
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        is_ready = self._is_ready()
        return web.Response(text="ready\n" if is_ready else "not ready\n", status=200 if is_ready else 503)

    async def _v1_status(self, _: web.Request) -> web.Response:
        return _json(self._status())

    async def _v1_room(self, request: web.Request) -> web.Response:
        return _json(self._trace(int(request.match_info["room"])))


def _json(document: Document) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
