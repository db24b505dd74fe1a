"""`offramp serve`: a real server, real clients, and what can go wrong."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from huggingface_hub import InferenceClient, constants

import offramp
from offramp import AdaptiveModel
from offramp.serving.app import make_app
from offramp.serving.body import BodyLimits
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.served import ServedModel
from tests.calls import fails
from tests.server import get, post, post_asgi, run_server
from tests.serving.conftest import LABELS, TEXTS


def test_hugging_face_inference_client(server, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the server is local
    expected = next(iter(offramp.load(folder).predict(TEXTS[:1])))
    scores = InferenceClient(server.url).text_classification(TEXTS[0], top_k=2)
    assert (
        len(scores) == 2
        and scores[0].label == expected.label
        and scores[0].score == pytest.approx(expected.score, abs=1e-4)
    )


def test_hugging_face_format(server, folder):
    expected = offramp.load(folder).answer(TEXTS)
    status, headers, body = post(server.url, {"inputs": TEXTS, "parameters": {"top_k": 1, "details": True}})
    assert status == 200 and headers["x-offramp-exit-layers"] == ",".join(map(str, expected.layer))
    assert [row[0]["exit_layer"] for row in body] == expected.layer.tolist()
    assert [row[0]["label"] for row in body] == [LABELS[label] for label in expected.logits.argmax(1)]
    assert post(server.url, {"inputs": TEXTS[0]})[2][0][0]["label"] == body[0][0]["label"]
    assert len(post(server.url, {"inputs": {"text": "good", "text_pair": "bad"}})[2][0]) == 3


def test_text_embeddings_inference_format(server):
    text = post(f"{server.url}/predict", {"inputs": TEXTS[0]})[2]
    assert {part["label"] for part in text} == set(LABELS) and sum(part["score"] for part in text) == pytest.approx(1)
    pair = post(f"{server.url}/predict", {"inputs": [TEXTS[0], TEXTS[1]]})[2]
    batch = post(f"{server.url}/predict", {"inputs": [[TEXTS[0]], [TEXTS[0], TEXTS[1]]]})[2]
    assert [part["label"] for part in batch[0]] == [part["label"] for part in text]
    assert batch[0][0]["score"] == pytest.approx(text[0]["score"], abs=1e-5)
    assert batch[1][0]["label"] == pair[0]["label"]
    raw = post(f"{server.url}/predict", {"inputs": TEXTS[0], "raw_scores": True})[2]
    assert [part["label"] for part in raw] == [part["label"] for part in text] and raw[0]["score"] != text[0]["score"]
    long = {"inputs": "film " * 300}
    status, _, body = post(f"{server.url}/predict", long)
    assert status == 422 and body["error_type"] == "too_long"
    assert post(f"{server.url}/predict", long | {"truncate": True})[0] == 200


def test_vllm_format(server):
    body = post(f"{server.url}/classify", {"model": "model", "input": TEXTS[:2]})[2]
    assert body["object"] == "list" and body["model"] == "model" and body["usage"]["prompt_tokens"] > 4
    assert [row["index"] for row in body["data"]] == [0, 1] and body["data"][0]["num_classes"] == 3
    assert sum(body["data"][0]["probs"]) == pytest.approx(1)
    status, _, body = post(f"{server.url}/classify", {"model": "mine", "input": TEXTS[:2]})
    assert status == 404 and body["error"] == "Unknown model 'mine'. This server serves 'model'."


def test_open_inference_protocol(server):
    assert json.loads(get(f"{server.url}/v2/health/ready")[1]) == {"ready": True}
    assert json.loads(get(f"{server.url}/v2/models/model")[1])["inputs"][0]["datatype"] == "BYTES"
    body = {"id": "7", "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": TEXTS[:2]}]}
    reply = post(f"{server.url}/v2/models/model/infer", body | {"parameters": {"max_layers": 1}})[2]
    assert reply["id"] == "7" and [tensor["name"] for tensor in reply["outputs"]] == ["label", "score", "exit_layer"]
    assert reply["outputs"][2]["data"] == [1, 1]
    assert post(f"{server.url}/v2/models/other/infer", body)[0] == 404
    body["inputs"][0]["shape"] = [3]
    assert post(f"{server.url}/v2/models/model/infer", body)[0] == 400


def test_a_policy_a_budget_and_a_deadline_are_outside_the_guarantee(server):
    for parameters, layers in (
        ({"policy": "never"}, "4"),
        ({"max_layers": 2, "policy": "never"}, "2"),
        ({"deadline_ms": 0.0001}, "1"),
    ):
        status, headers, body = post(server.url, {"inputs": [TEXTS[0]], "parameters": parameters | {"details": True}})
        assert status == 200 and headers["x-offramp-exit-layers"] == layers, body
        assert headers["x-offramp-outside-guarantee"] == "1" and body[0][0]["outside_guarantee"]


def test_status_routes(server):
    post(server.url, {"inputs": TEXTS})
    info = json.loads(get(f"{server.url}/info")[1])
    assert info["exits"] == [1, 2, 3, 4] and info["policy"] == "entropy:0.9" and info["guarantee"] is None
    assert info["policy_description"] == "entropy, threshold 0.9"
    assert info["answered"] == sum(info["by_layer"].values()) > 0 and info["seconds"]["p99"] > 0
    assert get(f"{server.url}/health") == (200, "ok") and get(f"{server.url}/ready")[0] == 200
    assert "offramp_rows_total" in get(f"{server.url}/metrics")[1]
    assert "<title>offramp</title>" in get(server.url)[1] and get(f"{server.url}/docs")[0] == 200
    assert set(json.loads(get(f"{server.url}/openapi.json")[1])["paths"]) >= {"/", "/predict", "/classify"}


HOSTILE = {
    "empty": b"",
    "no JSON": b"{",
    "not an object": b"[1, 2]",
    "a number": b'{"inputs": 5}',
    "numbers": b'{"inputs": [1, 2]}',
    "null": b'{"inputs": null}',
    "no text": b'{"inputs": []}',
    "deep": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "huge number": b'{"inputs": "x", "parameters": {"top_k": 1' + b"0" * 400 + b"}}",
    "infinite": b'{"inputs": "x", "parameters": {"deadline_ms": 1e999}}',
    "half a character": b'{"inputs": "\\ud800"}',
    "not UTF-8": b'{"inputs": "\xff\xfe"}',
    "unknown policy": b'{"inputs": "x", "parameters": {"policy": "entropyy:1"}}',
    "no such layer": b'{"inputs": "x", "parameters": {"max_layers": 0}}',
}


def test_a_body_that_is_not_json_is_explained(server):
    status, _, reply = post(server.url, None, raw=b'{"inputs": [')
    assert status == 400 and reply["error"].startswith("The body is not valid JSON: ")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/", {"inputs": []}, "inputs is empty; send at least one text."),
        ("/", {"inputs": None}, "inputs must be a text or an object or a list, got null."),
        ("/", {"inputs": ["a", 1]}, "inputs[1] must be a text or an object, got 1."),
        ("/", {"inputs": [{"text": "a"}, {"txt": "b"}]}, "inputs[1].text is missing."),
        ("/", {}, "inputs is missing."),
        ("/predict", {"inputs": [[]]}, "inputs[0] is empty; send at least one text."),
        ("/classify", {"input": []}, "input is empty; send at least one text."),
        ("/v2/models/model/infer", {"inputs": []}, "inputs is empty; send at least one text."),
    ],
)
def test_an_invalid_body_is_explained(server, path, body, message):
    status, _, reply = post(server.url + path, body)
    assert (status, reply) == (400, {"error": message, "error_type": "validation"})


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_400_and_nothing_breaks(server, name):
    status, _, body = post(server.url, None, raw=HOSTILE[name])
    assert status == (413 if name == "deep" else 400) and set(body) == {"error", "error_type"}
    assert "Traceback" not in body["error"]
    assert post(server.url, {"inputs": TEXTS[0]})[0] == 200


def test_requests_that_are_too_large(server):
    assert post(server.url, {"inputs": ["x"] * 65})[0] == 413
    assert post(server.url, {"inputs": "x" * 30_000})[0] == 413
    status, _, body = post(server.url, None, {"transfer-encoding": "chunked"}, _chunked("x" * 30_000))
    assert status == 413 and body["error_type"] == "too_large"


def _chunked(text: str) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    return (
        b"".join(
            b"%x\r\n%s\r\n" % (len(body[at : at + 5000]), body[at : at + 5000]) for at in range(0, len(body), 5000)
        )
        + b"0\r\n\r\n"
    )


def test_parallel_requests_get_the_same_predictions(server, folder):
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    expected = [row[0]["label"] for row in post(server.url, {"inputs": texts})[2]]
    with ThreadPoolExecutor(8) as clients:
        labels = list(clients.map(lambda text: post(server.url, {"inputs": text})[2][0][0]["label"], texts))
    assert labels == expected


def test_api_key_is_required(folder):
    with run_server(folder, "--api-key", "secret") as server:
        assert post(server.url, {"inputs": "x"})[0] == 401
        assert post(server.url, {"inputs": "x"}, {"authorization": "Bearer wrong"})[0] == 401
        assert post(server.url, {"inputs": "x"}, {"authorization": "Bearer secret"})[0] == 200
        assert get(f"{server.url}/health")[0] == 200 and get(f"{server.url}/info")[0] == 401
        assert get(server.url)[0] == 200  # the status page, which sends the key that follows its #
        status, _, body = post(
            server.url, {"inputs": "x", "parameters": {"policy": "never"}}, {"authorization": "Bearer secret"}
        )
        assert status == 400 and "does not accept `policy`" in body["error"]


@dataclass
class Crowd:
    """Clients that send requests without pause; `statuses` has a 0 for each broken connection."""

    url: str
    statuses: list[int] = field(default_factory=list)
    over: bool = False

    def send(self, number: int) -> None:
        while not self.over:
            try:
                status, headers, _ = post(self.url, {"inputs": [f"{text} {number}" for text in TEXTS * 5]})
            except OSError:  # refused, reset, or closed without a response
                self.statuses.append(0)
                return
            self.statuses.append(status if status == 200 or int(headers.get("retry-after", 0)) >= 1 else -status)

    @contextmanager
    def sending(self, clients: int):
        threads = [threading.Thread(target=self.send, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        while len(self.statuses) < 2 * clients and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        yield self
        self.over = True
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads), "a client hangs"


def test_full_queue_sends_retry_after_and_sigterm_finishes_accepted_requests(folder):
    with run_server(folder, "--max-queue", "40", "--batch-tokens", "16") as server:
        with Crowd(server.url).sending(8) as crowd:
            assert server.stop() == 128 + signal.SIGTERM  # as for every command
        log = server.process.stderr.read()
        accepted, answered = re.search(r"Shut down\. Requests: (\d+) accepted, (\d+) answered", log).groups()
        assert accepted == answered and set(crowd.statuses) <= {0, 200, 429, 503}
        assert crowd.statuses.count(200) == int(answered) and 429 in crowd.statuses  # no response was lost


def test_killed_server_frees_its_port(folder):
    with run_server(folder) as server:
        with Crowd(server.url).sending(4) as crowd:
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        assert crowd.statuses.count(0) == 4 and set(crowd.statuses) == {0, 200}
        port = server.url.rsplit(":", 1)[1]
    with run_server(folder, port=port) as restarted:
        assert restarted.url == server.url and post(restarted.url, {"inputs": "x"})[0] == 200


def test_disconnected_clients_release_their_queue_slots(folder):
    with run_server(folder, "--batch-tokens", "16", "--max-queue", "2000") as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"inputs": TEXTS * 100}).encode()
        for _ in range(4):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(
                    b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
                )
        for _ in range(200):
            if 'status="499"' in get(f"{server.url}/metrics")[1]:
                break
            time.sleep(0.05)
        assert 'status="499"' in get(f"{server.url}/metrics")[1]
        assert post(server.url, {"inputs": TEXTS[0]})[0] == 200  # behind all of theirs
        assert json.loads(get(f"{server.url}/info")[1])["answered"] < 1000  # not the 1,600 that were sent


def test_a_slow_request_body_times_out(folder):
    metrics = Metrics()
    app = make_app(ServedModel(Engine(offramp.load(folder))), ServerOptions(limits=BodyLimits(seconds=0.01)), metrics)
    status, body = asyncio.run(post_asgi(app))
    assert status == 408 and json.loads(body)["error_type"] == "slow"


@pytest.fixture
def page_browser(browser):
    """A browser that closes the page afterwards, because it polls its server and other tests share the browser."""
    yield browser
    browser.get("about:blank")
    browser.get_log("browser")


def test_status_page(server, page_browser):
    browser = page_browser
    post(server.url, {"inputs": TEXTS * 5})
    browser.get(server.url)
    browser.execute_async_script("setTimeout(arguments[0], 1500)")  # the page updates once a second
    page = browser.find_element("css selector", "body").text
    assert browser.execute_script("return count(1, 'thread') + count(2, 'thread')") == "1 thread2 threads"
    assert "texts per second, last 10 s" in page and "texts answered" in page
    assert int(browser.find_element("id", "answered").text) >= 5
    assert "torch float32" in page and "policy: entropy, threshold 0.9" in page and "layers, mean" in page
    bars = browser.find_elements("css selector", "#layers .bar")
    layers = json.loads(get(f"{server.url}/info")[1])["by_layer"]
    assert [bar.text.split("\n")[0] for bar in bars] == [f"layer {layer}" for layer in layers]
    assert float(browser.find_element("id", "p50").text) > 0 and float(browser.find_element("id", "speed").text) >= 0
    assert "no guarantee to audit" in page
    assert browser.get_log("browser") == []


def test_the_guarantee_is_audited_and_an_alarm_disables_early_exits(folder, tmp_path):
    """With a false guarantee: every row exits at the first exit, and 0.1 % of the predictions may differ."""
    model = AdaptiveModel.from_pretrained(folder)
    model.save_pretrained(tmp_path / "model")
    runner = offramp.load(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["policy"] = {"name": "entropy", "threshold": 2.0}
    guarantee = {"risk_type": "disagreement", "risk": 0.001, "confidence": 0.9, "test": "binomial", "tolerance": None}
    config["calibrated"] = {
        "guarantee": guarantee,
        "sentence": "At most 0.1 % differ.",
        "limits": [
            {"name": name, "kind": "class", "risk": 0.1, "classes": [name], "outcomes": [index], "tested": True}
            | {"rows": 0, "changed": 0, "missing": 0, "grouped": False}
            for index, name in enumerate(runner.config.labels)
        ],
        "policy": "entropy:2",
        "fingerprint": runner.fingerprint,
        "backend": "torch",
        "dtype": "float32",
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with run_server(tmp_path / "model", "--audit", "1", "--on-alarm", "never") as server:
        for turn in range(60):
            post(server.url, {"inputs": [f"{text} {turn}" for text in TEXTS]})
            audit = json.loads(get(f"{server.url}/info")[1])["audit"]
            if audit["violated"]:
                break
            if turn == 0:  # requests outside the guarantee are not audited
                post(server.url, {"inputs": TEXTS, "parameters": {"max_layers": 1}})
                assert json.loads(get(f"{server.url}/info")[1])["audit"]["audited"] <= 4
        before = -1
        while audit["audited"] > before:  # rows that were drawn before the alarm are still counted
            before = audit["audited"]
            time.sleep(0.3)
            audit = json.loads(get(f"{server.url}/info")[1])["audit"]
        assert audit["violated"] and audit["different"] > 0 and audit["interval"][0] > 0.001
        assert [limit["name"] for limit in audit["limits"]] == list(runner.config.labels)
        assert sum(limit["audited"] for limit in audit["limits"]) == audit["audited"]
        assert sum(limit["different"] for limit in audit["limits"]) == audit["different"]
        assert 'offramp_audited_by_limit_total{limit="' in get(f"{server.url}/metrics")[1]
        for parameters in ({"max_layers": 1}, {"deadline_ms": 0.0001}, {}):  # outside the guarantee, or stopped
            post(server.url, {"inputs": TEXTS, "parameters": parameters})
        assert json.loads(get(f"{server.url}/info")[1])["audit"]["audited"] == audit["audited"]
        headers = post(server.url, {"inputs": TEXTS[0]})[1]
        assert headers["x-offramp-exit-layers"] == "4" and "x-offramp-outside-guarantee" not in headers
        assert "offramp_alarm_violated 1.0" in get(f"{server.url}/metrics")[1]


def test_invalid_options_print_one_line(folder, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "Cannot listen" in fails(capsys, "serve", folder, "--port", port)
    assert "nowhere" in fails(capsys, "serve", tmp_path / "nowhere", "--port", 0)
    assert "no onnx export" in fails(capsys, "serve", folder, "--backend", "onnx", "--port", 0)
    assert "no guarantee on its predictions" in fails(capsys, "serve", folder, "--audit", 0.1, "--port", 0)
    assert "--audit must be between 0 and 1" in fails(capsys, "serve", folder, "--audit", 3)
    assert "Cannot read" in fails(capsys, "serve", folder, "--api-key-file", tmp_path / "key")
