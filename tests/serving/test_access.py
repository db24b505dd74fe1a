"""Who may send requests: keys, host names, web pages of other origins, TLS; ids and logs of requests."""

from __future__ import annotations

import json
import subprocess

import pytest
from selenium.webdriver.support.ui import WebDriverWait

import offramp
from offramp.errors import BadValue
from offramp.serving.api_keys import ApiKeys, find_keys
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.server import HttpOptions
from tests.calls import fails
from tests.server import get, post, request, run_server, serve_in_thread
from tests.serving.conftest import TEXTS

BODY = json.dumps({"inputs": TEXTS[0]}).encode()
JSON = {"content-type": "application/json"}


def test_keys_in_a_file_are_read_again_when_it_changes(tmp_path, caplog):
    file, now = tmp_path / "keys", [0.0]
    file.write_text("# the team\nfirst\n\n  second  \n")
    keys = ApiKeys(file=file, clock=lambda: now[0])
    assert [keys.accepts(key) for key in ("first", "second", "# the team", "", "third")] == [True, True] + [False] * 3
    file.write_text("third\n")
    assert keys.accepts("first")  # it is looked at once a second
    now[0] = 2.0
    assert keys.accepts("third") and not keys.accepts("first")
    file.write_text("")
    now[0] = 4.0
    assert keys.accepts("third") and "contains no key" in caplog.text  # a mistake locks nobody out
    file.unlink()
    now[0] = 6.0
    assert keys.accepts("third") and "Cannot read" in caplog.text


def test_a_file_without_keys_is_refused(tmp_path):
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(BadValue, match="contains no key"):
        ApiKeys(file=tmp_path / "keys")


def test_a_key_is_required_and_pages_need_none(folder, monkeypatch):
    monkeypatch.setenv("OFFRAMP_API_KEY", "one, two")
    options = ServerOptions(keys=find_keys(None, None))
    with serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions()) as (url, _):
        status, headers, _ = request(url, BODY, JSON)
        assert status == 401 and headers["www-authenticate"] == "Bearer"
        assert request(url, BODY, JSON | {"authorization": "Bearer two"})[0] == 200
        assert request(url, BODY, JSON | {"authorization": "Bearer öne"})[0] == 401
        # the pages contain no data, their requests need the key
        assert get(f"{url}/docs")[0] == get(url)[0] == get(f"{url}/health")[0] == 200
        assert get(f"{url}/openapi.json")[0] == get(f"{url}/v1/models")[0] == 401


def test_an_empty_key_in_the_environment_is_refused(folder, monkeypatch, capsys):
    monkeypatch.setenv("OFFRAMP_API_KEY", " ")
    assert "OFFRAMP_API_KEY is empty" in fails(capsys, "serve", folder, "--port", 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),  # a web page can send this to any server, without asking
        ({"content-type": "multipart/form-data"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),  # curl's default
        ({"content-type": "application/x-www-form-urlencoded", "origin": "http://evil.example"}, 403),
        (JSON | {"origin": "http://evil.example"}, 403),
        (JSON | {"origin": "null"}, 403),
        (JSON | {"host": "evil.example:8000"}, 421),  # a name that resolves to this machine
        (JSON | {"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 421),
        (JSON | {"host": "localhost:1"}, 200),
        ({"content-type": "application/vnd.api+json; charset=utf-8"}, 200),
    ],
)
def test_web_pages_of_other_origins_cannot_use_a_local_server(server, headers, status):
    reply = request(server.url, BODY, headers)
    assert reply[0] == status, reply[2]
    assert "access-control-allow-origin" not in reply[1]


def test_pages_of_the_server_itself_may_send_requests(server):
    assert request(server.url, BODY, JSON | {"origin": server.url})[0] == 200


def test_allowed_hosts_and_origins(folder):
    options = ServerOptions(allowed_hosts=frozenset({"models.example"}), cors_origins=("https://app.example",))
    with serve_in_thread(Engine(offramp.load(folder)), options, HttpOptions()) as (url, _):
        local = JSON | {"host": "models.example"}
        assert request(url, BODY, local)[0] == 200 and request(url, BODY, JSON)[0] == 421
        status, headers, _ = request(url, BODY, local | {"origin": "https://app.example"})
        assert status == 200 and headers["access-control-allow-origin"] == "https://app.example"
        preflight = {"origin": "https://app.example", "access-control-request-method": "POST"}
        status, headers, _ = request(url, None, preflight, "OPTIONS")
        assert status == 200 and "POST" in headers["access-control-allow-methods"]
        assert request(url, BODY, local | {"origin": "https://evil.example"})[0] == 403


def test_ids_and_a_log_line_without_texts(folder, caplog):
    caplog.set_level("INFO", "offramp")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serve_in_thread(Engine(offramp.load(folder)), ServerOptions(log_requests=True), HttpOptions()) as (url, _):
        status, headers, _ = request(url, BODY, JSON | {"x-request-id": "abc-1", "traceparent": trace})
        assert status == 200 and headers["x-request-id"] == "abc-1"
        generated = request(url, b"{", JSON | {"x-request-id": "with space"})[1]["x-request-id"]
        assert len(generated) == 32
        get(f"{url}/health")
    lines = [json.loads(message) for message in caplog.messages if "request_id" in message]
    assert [line["request_id"] for line in lines] == ["abc-1", generated]
    assert lines[0]["trace_id"] == trace[3:35] and lines[0]["rows"] == 1 and sum(lines[0]["exit_layers"].values()) == 1
    assert lines[0]["status"] == 200 and lines[0]["ms"] > 0 and lines[0]["time"].endswith("+00:00")
    assert lines[1]["status"] == 400 and "rows" not in lines[1] and TEXTS[0] not in caplog.text


def test_lines_of_the_log_are_json_on_the_command_line(folder):
    with run_server(folder, "--log-requests") as server:
        request(server.url, BODY, JSON | {"x-request-id": "`port`"})  # not the name of an argument
        server.stop()
        assert json.loads(server.process.stderr.readline())["request_id"] == "`port`"


def test_head_requests_and_the_list_of_models(server):
    assert request(f"{server.url}/health", method="HEAD")[::2] == (200, b"")
    assert request(f"{server.url}/ready", method="HEAD")[0] == 200
    models = json.loads(get(f"{server.url}/v1/models")[1])
    assert models["object"] == "list" and [model["id"] for model in models["data"]] == ["model"]


def test_the_page_of_the_api_loads_nothing_from_other_servers(server, browser):
    content = get(f"{server.url}/docs")[1]
    assert "//" not in content.replace("</", "") or "http" not in content
    browser.get(f"{server.url}/docs")
    wait = WebDriverWait(browser, 30)
    routes = wait.until(lambda page: page.find_elements("css selector", "#routes > details"))
    by_name = {" ".join(route.text.split()[:2]): route for route in routes}
    assert {"POST /", "GET /info", "POST /v2/models/{model}/infer"} <= set(by_name)
    route = by_name["POST /"]
    route.find_element("css selector", "summary").click()
    route.find_element("css selector", "button").click()
    output = route.find_elements("css selector", "pre")[-1]
    wait.until(lambda page: output.text)
    assert output.text.startswith("200") and '"label"' in output.text
    assert browser.get_log("browser") == []


def test_the_description_of_the_api_is_complete(server):
    api = json.loads(get(f"{server.url}/openapi.json")[1])
    schema = api["paths"]["/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/HubRequest"}
    references = {part.split('"')[0] for part in json.dumps(api).split('"#/components/schemas/')[1:]}
    assert references <= set(api["components"]["schemas"])
    infer = api["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"]
    assert [parameter["name"] for parameter in infer["parameters"]] == ["model", "version"]


def test_https(folder, tmp_path, capsys):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    http = HttpOptions(tls_cert=cert, tls_key=key)
    with serve_in_thread(Engine(offramp.load(folder)), ServerOptions(), http) as (url, _):
        assert url.startswith("https://") and post(url, {"inputs": TEXTS[0]})[0] == 200
    assert "File not found" in fails(capsys, "serve", folder, "--tls-cert", tmp_path / "none.pem", "--port", 0)
    assert "Cannot use the TLS certificate" in fails(capsys, "serve", folder, "--tls-cert", cert, "--port", 0)
    assert "--tls-key needs --tls-cert" in fails(capsys, "serve", folder, "--tls-key", key, "--port", 0)


def test_a_server_without_a_key_that_others_can_reach_warns(folder):
    with run_server(folder, "--host", "0.0.0.0") as server:
        server.stop()
        assert "0.0.0.0 is reachable from other machines and has no API key" in server.process.stderr.read()
