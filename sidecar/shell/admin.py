"""HTTP for operators: /metrics, /healthz (the loop turns), /readyz (served, and by whom), /v1/status and
/v1/rooms/{room}. Read only.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.shell.visitors import Visitors

Document = dict[str, Any]

REQUEST_LIMIT_BYTES = 16 * 1024
FRESH_S = 0.1
"""How long an answer that takes work to put together is given again."""


class AdminServer:
    """`readiness` (None: not ready), `status` and `trace` make the documents; nothing here knows what is in them.
    `before_each` request is called first."""

    def __init__(
        self,
        *,
        before_each: Callable[[], None],
        registry: CollectorRegistry,
        readiness: Callable[[], Document | None],
        status: Callable[[], Document],
        trace: Callable[[int], Document],
        visitor_limit: int = 64,
    ) -> None:
        self._before_each = before_each
        self._readiness = readiness
        self._trace = trace
        self._metrics_body = _Fresh(lambda: generate_latest(registry))
        self._status_body = _Fresh(lambda: msgspec.json.encode(status()))
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.visitors = Visitors(self._serve_visitor, limit=visitor_limit)

    async def start(self, host: str, port: int) -> int:
        """The port served. Raises OSError when it cannot be had."""
        app = web.Application(client_max_size=REQUEST_LIMIT_BYTES, middlewares=[_first(self._before_each)])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/v1/status", self._v1_status)
        app.router.add_get(r"/v1/rooms/{room:\d{1,19}}", self._v1_room)
        app.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(self.visitors, host, port, backlog=64)
        except OSError:
            await self.stop()
            raise
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _serve_visitor(self) -> asyncio.Protocol:
        assert self._runner is not None  # noqa: S101 - the server is created after it
        assert self._runner.server is not None  # noqa: S101
        return self._runner.server()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics_body.get(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._readiness()
        return _json({"is_ready": ready is not None, **(ready or {})}, status=503 if ready is None else 200)

    async def _v1_status(self, _: web.Request) -> web.Response:
        return web.Response(body=self._status_body.get(), content_type="application/json")

    async def _v1_room(self, request: web.Request) -> web.Response:
        return _json(self._trace(int(request.match_info["room"])))


class _Fresh:
    """Whoever asks again and again gets what was put together last."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._made = b""
        self._good_until = 0.0

    def get(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if now >= self._good_until:
            self._made = self._make()
            self._good_until = asyncio.get_running_loop().time() + FRESH_S
        return self._made


def _first(call: Callable[[], None]) -> Middleware:
    @web.middleware
    async def calling(request: web.Request, handler: Handler) -> web.StreamResponse:
        call()
        return await handler(request)

    return calling


async def _close_after(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


def _json(document: Document, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json", status=status)
