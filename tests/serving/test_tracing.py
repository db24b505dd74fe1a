"""Spans of requests: the real OTLP exporter sends them to a local HTTP server, which decodes them."""

from __future__ import annotations

import gzip
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import offramp
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.server import HttpOptions
from tests.calls import fails
from tests.server import get, post, request, run_server, serve_in_thread
from tests.serving.conftest import TEXTS

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JSON = {"content-type": "application/json"}


class Collector(ThreadingHTTPServer):
    """Receives OTLP over HTTP; `spans` are the decoded ones, `content` the received bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.content, self.paths, self.services, self.spans = b"", [], [], []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, path: str, content: bytes) -> None:
        self.paths.append(path)
        self.content += content
        for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            self.services.append(attributes(resource.resource)["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.server.add(self.path, gzip.decompress(content) if self.headers["content-encoding"] == "gzip" else content)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def attributes(entry) -> dict:
    """Return the attributes of a span or resource."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in entry.attributes}


@pytest.fixture
def collector(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with Collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        threading.Thread(target=receiver.serve_forever, args=(0.02,), daemon=True).start()
        yield receiver
        receiver.shutdown()


def test_a_span_per_request_continues_the_clients_trace(folder, collector):
    headers = JSON | {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "abc"}
    with run_server(folder, "--otel", "--log-requests", "--allow-override") as server:
        assert post(server.url, {"inputs": TEXTS, "parameters": {"policy": "never"}}, headers)[0] == 200
        assert request(server.url, b"{", JSON)[0] == 400
        assert get(f"{server.url}/health")[0] == 200  # no span
        assert get(f"{server.url}/none")[0] == 404
        server.stop()  # exports what is left, long before the batch's five seconds are over
        log = [json.loads(line) for line in server.process.stderr.read().splitlines() if line.startswith("{")]
    assert collector.paths == ["/v1/traces"] and collector.services == ["offramp"]
    prediction, invalid, unknown = collector.spans
    assert (prediction.name, invalid.name, unknown.name) == ("POST /", "POST /", "GET")
    assert prediction.trace_id.hex() == TRACE and prediction.parent_span_id.hex() == PARENT
    assert prediction.trace_state == "vendor=1" and prediction.kind == prediction.SPAN_KIND_SERVER
    assert attributes(prediction) == {
        "http.request.method": "POST",
        "http.route": "/",
        "http.response.status_code": 200,
        "offramp.request_id": "abc",
        "offramp.rows": len(TEXTS),
        "offramp.exit_layers": json.dumps({"4": len(TEXTS)}),
        "offramp.outside_guarantee": True,
    }
    assert prediction.end_time_unix_nano > prediction.start_time_unix_nano
    assert attributes(invalid)["http.response.status_code"] == 400 and "offramp.rows" not in attributes(invalid)
    assert "http.route" not in attributes(unknown) and unknown.parent_span_id == b""
    assert [line["trace_id"] for line in log] == [span.trace_id.hex() for span in collector.spans]
    assert all(text.encode() not in collector.content for text in TEXTS)


def test_the_environment_sets_name_and_sampling(folder, collector, monkeypatch):
    from offramp.serving.tracing import RequestTracer

    monkeypatch.setenv("OTEL_SERVICE_NAME", "reviews")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    options = ServerOptions(tracer=RequestTracer())
    with serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions()) as (url, _):
        assert post(url, {"inputs": TEXTS})[0] == 200
        assert post(url, {"inputs": TEXTS}, {"traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
    assert collector.services == ["reviews"]
    assert [span.trace_id.hex() for span in collector.spans] == [TRACE]


def test_a_failing_model_is_an_error(collector):
    from starlette.datastructures import Headers

    from offramp.serving.request_log import RequestRecord
    from offramp.serving.tracing import RequestTracer

    tracer = RequestTracer()
    tracer.start_export()
    for status in (424, 429, 503):
        record = RequestRecord.of(Headers({}))
        tracer.end(tracer.start("POST", Headers({}), record), "POST", "/", status, record)
    tracer.stop_export()
    assert [(span.status.code, attributes(span).get("error.type")) for span in collector.spans] == [
        (2, "424"),
        (0, None),
        (2, "503"),
    ]


def test_a_collector_that_is_away_delays_neither_answers_nor_the_end(folder, monkeypatch):
    from offramp.serving.tracing import RequestTracer

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    options = ServerOptions(tracer=RequestTracer(flush_seconds=0.05))
    with serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions()) as (url, _):  # it fails if it hangs
        assert post(url, {"inputs": TEXTS})[0] == 200


def test_another_protocol_is_refused(folder, monkeypatch, capsys):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert "--otel exports with the protocol http/protobuf" in fails(capsys, "serve", folder, "--otel", "--port", 0)
