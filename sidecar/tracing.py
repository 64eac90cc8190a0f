"""Spans of lives, if the settings name a collector: what makes them and what sends them, put together."""

import asyncio
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Self

from sidecar.config import Config
from sidecar.shell.driver import Driver

if TYPE_CHECKING:
    from sidecar.shell.otlp import SpanExport
    from sidecar.shell.spans import LifeSpans

LAST_SPANS_LIMIT_S = 2.0
"""That a collector may delay the end of the sidecar."""


class Tracing:
    """Without a collector it does nothing and costs nothing."""

    def __init__(self, spans: "LifeSpans | None" = None, export: "SpanExport | None" = None) -> None:
        self._spans = spans
        self._export = export
        self.counts: Mapping[str, int] = spans.counts if spans else {}

    @classmethod
    def start(cls, config: Config, driver: Driver, *, loop: asyncio.AbstractEventLoop) -> Self:
        if config.otlp_endpoint is None:
            return cls()
        from sidecar.shell.otlp import SpanExport  # noqa: PLC0415 - it needs the extra `otel`, and time to load
        from sidecar.shell.spans import LifeSpans  # noqa: PLC0415

        export = SpanExport.to(config.otlp_endpoint, version=version("pd-sidecar"))
        spans = LifeSpans(driver.notifier, record=export.record, loop=loop, clock=time.monotonic, wall_ns=time.time_ns)
        driver.observer = spans
        return cls(spans, export)

    async def stop(self) -> None:
        if self._spans is not None and self._export is not None:
            self._spans.finish()
            await self._export.close(LAST_SPANS_LIMIT_S)
