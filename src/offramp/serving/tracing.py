"""OpenTelemetry: a span per request, exported in the background.

The standard environment variables configure it: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_PROPAGATORS and the others of the SDK.
"""

from __future__ import annotations

import json
import os
import threading

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from starlette.datastructures import Headers

import offramp
from offramp.errors import BadValue
from offramp.serving.request_log import RequestRecord

__all__ = ["RequestTracer"]

PROTOCOL, PROTOCOL_VARIABLES = "http/protobuf", ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
UNKNOWN_SERVICE = "unknown_service"  # the SDK's name, if the environment sets none
BACKEND_FAILED = 424  # the only client error that is a failure of the server


class RequestTracer:
    """Starts and ends the spans of requests, which continue the client's trace; they never contain a text.

    At shutdown it takes at most `flush_seconds` to export the last spans, even if the collector does not answer.
    """

    def __init__(self, flush_seconds: float = 5.0):
        protocol = next((os.environ[name] for name in PROTOCOL_VARIABLES if os.environ.get(name)), PROTOCOL)
        if protocol != PROTOCOL:
            raise BadValue(f"`otel=` exports with the protocol {PROTOCOL}; OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}.")
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._exporter, self._flush_seconds = OTLPSpanExporter(), flush_seconds
        self._tracer = self._provider.get_tracer("offramp", offramp.__version__)

    def start_export(self) -> None:
        """Start the thread that exports spans in batches."""
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))

    def start(self, method: str, headers: Headers, record: RequestRecord) -> Span:
        """Start the span of a request; the request's log line gets its trace id."""
        span = self._tracer.start_span(method, propagate.extract(headers), SpanKind.SERVER)
        if span.get_span_context().is_valid:
            record.trace_id = f"{span.get_span_context().trace_id:032x}"
        return span

    def end(self, span: Span, method: str, route: str | None, status: int, record: RequestRecord) -> None:
        """End the span of a request with what is known about the response; `route` is None if no route matched."""
        attributes: dict[str, str | int | bool] = {
            "http.request.method": method,
            "http.response.status_code": status,
            "offramp.request_id": record.request_id,
        }
        if route is not None:
            span.update_name(f"{method} {route}")
            attributes["http.route"] = route
        if record.rows is not None:
            attributes["offramp.rows"] = record.rows
            attributes["offramp.exit_layers"] = json.dumps(record.layers)
            attributes["offramp.outside_guarantee"] = record.outside
        if status >= 500 or status == BACKEND_FAILED:
            attributes["error.type"] = str(status)
            span.set_status(StatusCode.ERROR)
        span.set_attributes(attributes)
        span.end()

    def stop_export(self) -> None:
        """Export the remaining spans."""
        flush = threading.Thread(target=self._provider.shutdown, name="flush-spans", daemon=True)
        flush.start()
        flush.join(self._flush_seconds)


def _resource() -> Resource:
    """Return the description of this service; the environment may set its name."""
    resource = Resource.create({SERVICE_VERSION: offramp.__version__})
    if str(resource.attributes[SERVICE_NAME]).startswith(UNKNOWN_SERVICE):
        resource = resource.merge(Resource({SERVICE_NAME: "offramp"}))
    return resource
