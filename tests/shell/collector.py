"""In the place of an OpenTelemetry collector."""

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.shell.scene import LIMIT_S


class Collector:
    """An OTLP/HTTP receiver. `answers` is what it says to each batch; None: nothing, ever."""

    def __init__(self, status: int | None = 200) -> None:
        self.batches: list[ExportTraceServiceRequest] = []
        self.came = threading.Event()
        self._over = threading.Event()
        collector = self

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.batches.append(ExportTraceServiceRequest.FromString(body))
                collector.came.set()
                if status is None:
                    collector._over.wait(LIMIT_S)
                    return
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def serving(self) -> Iterator["Collector"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._server.shutdown()
            thread.join(LIMIT_S)
            self._server.server_close()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for batch in self.batches
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]
