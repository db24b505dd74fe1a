"""Connections that are silent, slow or too many; shutting down while they are open."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import socket
import time
from dataclasses import replace

import pytest

import offramp
from offramp.serving.body import BodyLimits
from offramp.serving.connections import ConnectionLimits
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.server import HttpOptions
from tests import programs
from tests.server import get, post, run_server, serve_in_thread
from tests.serving.conftest import TEXTS, waiting_stepper

SHORT = ConnectionLimits(connections=20, header_seconds=0.3, body_seconds=0.5, closing_seconds=0.2)
SLOW_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def url(folder):
    """A server with short limits."""
    options = ServerOptions(limits=BodyLimits(seconds=0.5))
    with serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions(SHORT)) as (url, _):
        yield url


def connect(url: str, first: bytes = b"") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(first)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            content += part
    return content


@pytest.mark.parametrize(
    ("first", "expected"),
    [(b"", b"408"), (b"POST / HTTP/1.1\r\nhost: loc", b"408"), (SLOW_BODY, b"408")],
    ids=["silent", "half a header", "half a body"],
)
def test_connections_that_send_no_complete_request_are_closed(url, first, expected):
    with connect(url, first) as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 " + expected)


def test_a_body_that_arrives_byte_by_byte_is_limited_in_time(url):
    """The time counts for the whole body, not between two parts."""
    with connect(url, SLOW_BODY) as connection:
        for _ in range(200):
            if select.select([connection], [], [], 0.05)[0]:
                break
            connection.sendall(b" ")
        assert read_to_end(connection).startswith(b"HTTP/1.1 408")


def test_a_slow_body_is_limited_after_its_request_was_rejected(url):
    """The response is sent before the body is complete; the rest of the body must not keep the connection open."""
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 1000\r\n\r\n{"
    with connect(url, head) as connection:
        replies = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                if select.select([connection], [], [], 0.05)[0]:
                    part = connection.recv(4096)
                    replies += part
                    if not part:
                        break
                connection.sendall(b" ")
        assert replies.startswith(b"HTTP/1.1 415")


def test_large_headers_are_rejected(url):
    with connect(url, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70_000) as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 431")


def test_a_connection_can_be_reused(url):
    with connect(url) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_new_connections_replace_those_that_wait(folder):
    """Many more silent connections than the maximum; health and predictions are answered."""
    patient = ConnectionLimits(connections=20, header_seconds=60, body_seconds=60, closing_seconds=0.2)
    running = serve_in_thread(Engine(offramp.load(folder)), ServerOptions(), HttpOptions(patient))
    with running as (url, server), contextlib.ExitStack() as stack:
        for number in range(100):
            stack.enter_context(connect(url, SLOW_BODY if number % 2 else b""))
        for _ in range(5):
            assert get(f"{url}/health") == (200, "ok")
        assert post(url, {"inputs": TEXTS})[0] == 200
        assert len(server.server_state.connections) <= 20


def test_health_is_answered_when_all_connections_are_busy(folder):
    """The server is answering as many requests as it has connections: others get 503, health checks do not."""
    runner = offramp.load(folder)
    stepper = waiting_stepper(runner)
    body = b'{"inputs": "a text"}'
    sent = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    stepper.go.set()  # to warm up
    engine = Engine(replace(runner, stepper=stepper))
    running = serve_in_thread(engine, ServerOptions(), HttpOptions(ConnectionLimits(connections=4)))
    with running as (url, server), contextlib.ExitStack() as stack:
        stepper.go.clear()
        busy = []
        for _ in range(4):
            busy.append(stack.enter_context(connect(url, sent)))
            while engine.accepted < len(busy):
                time.sleep(0.01)
        late = [stack.enter_context(connect(url, sent)) for _ in range(3)]
        assert [read_to_end(connection)[9:12] for connection in late] == [b"503"] * 3
        assert get(f"{url}/health") == (200, "ok")
        assert len(server.server_state.connections) <= 5
        stepper.go.set()
        assert [connection.recv(4096)[9:12] for connection in busy] == [b"200"] * 4


def test_a_low_limit_of_open_files(folder):
    """With 200 open files and 300 silent connections, the server is reachable."""
    process = programs.Started(programs.offramp, ["serve", folder, "--port", "0"], limit_open_files)
    try:
        url = process.stdout.readline().split(" on ")[1].split()[0]
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(connect(url))
            assert [get(f"{url}/health")[0] for _ in range(3)] == [200] * 3
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert "The limit of open files allows" in process.stderr.read()


def limit_open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


def test_sigterm_ends_a_server_with_a_slow_body(folder):
    with run_server(folder, "--grace-seconds", "1") as server, connect(server.url, SLOW_BODY):
        time.sleep(0.2)
        assert server.stop() == 128 + signal.SIGTERM
        log = server.process.stderr.read()
    assert "Shut down. Requests: 0 accepted, 0 answered" in log and "Traceback" not in log


def test_a_second_ctrl_c_ends_at_once_without_a_traceback(folder):
    with run_server(folder) as server, connect(server.url, SLOW_BODY):
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.stop(signal.SIGINT) == 130
        log = server.process.stderr.read()
    assert "Traceback" not in log and "stopped." in log


# -- what one connection can send ----------------------------------------------------------------------


def test_a_client_can_send_only_a_few_requests_ahead(url):
    """Thousands of pipelined requests on one connection used to fill the memory."""
    with connect(url) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
        replies = read_to_end(connection)
    assert replies.count(b"HTTP/1.1 200") <= 40
    assert get(f"{url}/health") == (200, "ok")


def test_a_few_pipelined_requests_are_answered_in_order(url):
    body = b'{"inputs": "a text"}'
    sent = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    last = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with connect(url, sent * 3 + last) as connection:
        replies = read_to_end(connection)
    assert replies.count(b"HTTP/1.1 200") == 4 and replies.rindex(b'"label"') < replies.index(b'"object":"list"')


@pytest.mark.parametrize(
    "trailer",
    [b"a: b\r\n" * 100_000, b"a: " + b"x" * 30_000_000],
    ids=["many fields", "one long field"],
)
def test_fields_after_a_chunked_body_are_limited(url, trailer):
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with connect(url, head) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(trailer)
        with contextlib.suppress(ConnectionError):
            reply = read_to_end(connection)
            assert reply == b"" or reply[9:12] in (b"400", b"413")
    assert get(f"{url}/health") == (200, "ok")


def test_a_request_to_upgrade_to_http_2_is_answered_with_http_1(url):
    """Java's client sends it with every first request."""
    body = b'{"inputs": "a text"}'
    headers = b"host: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\ncontent-length: %d" % len(
        body
    )
    with connect(url, b"POST / HTTP/1.1\r\n" + headers + b"\r\n\r\n" + body) as connection:
        reply = connection.recv(65536)
        while b"label" not in reply and (more := connection.recv(65536)):
            reply += more
    assert reply.startswith(b"HTTP/1.1 200") and b"label" in reply


def test_requests_that_are_not_http_get_a_json_error(url):
    with connect(url, b"nonsense\r\n\r\n") as connection:
        reply = read_to_end(connection)
    assert reply.startswith(b"HTTP/1.1 400") and reply.endswith(
        b'{"error":"Invalid HTTP request.","error_type":"http"}'
    )


def test_clients_that_do_not_read_responses_lose_their_connection(folder):
    limits = ConnectionLimits(connections=4, write_seconds=0.3, closing_seconds=0.2)
    tensor = {"name": "t", "shape": [500], "datatype": "BYTES", "data": ["a"] * 500}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "label"}] * 60})
    head = f"POST /v2/models/model/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    running = serve_in_thread(Engine(offramp.load(folder), queue_rows=10_000), ServerOptions(), HttpOptions(limits))
    with running as (url, server), contextlib.ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            request = (head + "\r\n" + body).encode()
            connection.sendall(request * 11 + (head + "connection: close\r\n\r\n" + body).encode())
        for count in (4, 0):  # they are accepted, and aborted
            for _ in range(600):
                if len(server.server_state.connections) == count:
                    break
                time.sleep(0.05)
            assert len(server.server_state.connections) == count
        status, _, reply = post(url, {"inputs": TEXTS})
        assert status == 200, reply


def test_all_bodies_together_are_limited(folder):
    """Half-sent bodies of many clients take a limited amount of memory."""
    options = ServerOptions(limits=BodyLimits(bytes=10_000))
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n"
    running = serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions())
    with running as (url, _), contextlib.ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(connect(url, head + b" " * 9998))
        replies = [read_until_reply(stack.enter_context(connect(url, head + b" " * 9998))) for _ in range(3)]
        assert [reply[9:12] for reply in replies] == [b"503"] * 3


def read_until_reply(connection: socket.socket) -> bytes:
    return connection.recv(4096)
