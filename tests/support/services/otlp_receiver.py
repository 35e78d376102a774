"""A receiver of OTLP over HTTP in the test's process: it decodes the protobuf that an exporter sends."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """Receives while its context lasts.

    Attributes:
        spans: all spans, in the order of their arrival.
        metrics: the newest value of each metric, of one of its series.
        services: the names of the services that sent something.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, float] = {}
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver.receive(self.path, body).SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def receive(self, path: str, body: bytes) -> ExportTraceServiceResponse | ExportMetricsServiceResponse:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for of_resource in traces.resource_spans:
                self._note(of_resource.resource)
                for scope in of_resource.scope_spans:
                    self.spans += scope.spans
            return ExportTraceServiceResponse()
        assert path == "/v1/metrics"
        for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self._note(of_resource.resource)
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.sum.data_points or metric.gauge.data_points
                    for point in points:
                        self.metrics[metric.name] = point.as_double or point.as_int
        return ExportMetricsServiceResponse()

    def _note(self, resource: Resource) -> None:
        self.services |= {one.value.string_value for one in resource.attributes if one.key == "service.name"}
