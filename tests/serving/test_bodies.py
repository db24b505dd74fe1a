"""Request bodies within the size limit that used to take seconds and gigabytes, and how they are rejected."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from offramp.answers.open_inference import InferRequest
from offramp.answers.text_routes import ClassifyRequest, HubRequest, PredictRequest
from offramp.serving.body import BodyLimits, parse_body
from offramp.serving.errors import HttpError
from tests.server import post, request
from tests.serving.conftest import TEXTS

SIZE = 1_980_000
LIMITS = BodyLimits()
ONES, EMPTY = b"[" + b"1," * (SIZE // 2) + b"1]", b"[" + b'"",' * (SIZE // 3) + b'""]'
INFER = b'{"inputs":[{"name":"text","shape":%s,"datatype":"BYTES","data":%s}]}'

LARGE = {
    "numbers": (HubRequest, b'{"inputs":' + ONES + b"}", 413),
    "strings": (HubRequest, b'{"inputs":' + EMPTY + b"}", 413),
    "objects": (HubRequest, b'{"inputs":[' + b"{}," * (SIZE // 3) + b"{}]}", 413),
    "strings in predict": (PredictRequest, b'{"inputs":' + EMPTY + b"}", 413),
    "numbers in classify": (ClassifyRequest, b'{"input":' + ONES + b"}", 413),
    "shape": (InferRequest, INFER % (ONES, b'["a"]'), 413),
    "data": (InferRequest, INFER % (b"[1]", ONES), 413),
    "huge integers in shape": (InferRequest, INFER % (b"[" + b"9" * 4000 + b"]", b'["a"]'), 400),
    "a huge integer": (HubRequest, b'{"inputs":' + b"1" * SIZE + b"}", 400),
    "nested lists": (HubRequest, b'{"inputs":' + b"[" * SIZE, 413),
    "nested lists within the limit": (HubRequest, b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
    "escaped quotes": (HubRequest, b'{"inputs":"' + b'\\"' * (SIZE // 2), 400),
    "backslashes": (HubRequest, b'{"inputs":"' + b"\\" * SIZE, 400),
    "8,000 numbers": (HubRequest, b'{"inputs":' + b"[" + b"1," * 8000 + b"1]}", 400),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_is_rejected_before_it_takes_much_memory(name):
    """The number of allocated bytes is a measure of the work that does not depend on the machine."""
    model, content, status = LARGE[name]
    body = bytearray(content)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as error:
            parse_body(body, None, model, LIMITS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.status == status and len(str(error.value)) < 300
    assert peak < 2 * len(body) + 300_000


def test_texts_may_contain_any_number_of_commas_brackets_and_quotes():
    texts = ['a, [b], {"c": "d\\"}, ' * 4000] * 20
    body = bytearray(json.dumps({"inputs": texts}).encode())
    assert parse_body(body, None, HubRequest, LIMITS).inputs == texts


@pytest.mark.parametrize("name", ["numbers", "shape"])
def test_the_server_answers_other_requests_after_a_large_body(server, name):
    path = "/v2/models/model/infer" if name == "shape" else "/"
    status, _, reply = post(server.url + path, None, raw=LARGE[name][1][:19_000])
    assert status in (400, 413) and set(reply) == {"error", "error_type"}
    assert post(server.url, {"inputs": TEXTS[0]})[0] == 200


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([10**30], "less than or equal to"),
        ([-1], "greater than or equal to"),
        ([1] * 9, "at most 8 items"),
        ([2], "has 1 texts, but its shape is [2]"),
    ],
)
def test_shapes_are_bounded(server, shape, message):
    body = {"inputs": [{"name": "text", "shape": shape, "datatype": "BYTES", "data": ["a"]}]}
    status, _, reply = post(f"{server.url}/v2/models/model/infer", body)
    assert status == 400 and message in reply["error"]


def test_a_lone_surrogate_in_an_id_is_an_invalid_request(server):
    raw = b'{"id": "\\ud800", "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}'
    status, _, reply = post(f"{server.url}/v2/models/model/infer", None, raw=raw)
    assert status == 400 and reply["error"].startswith("The body is not valid JSON")


def test_function_to_apply(server):
    def scores(parameters):
        status, _, reply = post(server.url, {"inputs": TEXTS[0], "parameters": parameters})
        return {entry["label"]: entry["score"] for entry in reply[0]} if status == 200 else reply["error"]

    softmax, sigmoid, logits = (scores({"function_to_apply": name}) for name in ("softmax", "sigmoid", "none"))
    assert softmax == pytest.approx(scores({}), abs=1e-5) and sum(softmax.values()) == pytest.approx(1)
    assert sum(sigmoid.values()) != pytest.approx(1) and all(0 < value < 1 for value in sigmoid.values())
    raw = post(f"{server.url}/predict", {"inputs": TEXTS[0], "raw_scores": True})[2]
    assert logits == pytest.approx({entry["label"]: entry["score"] for entry in raw}, abs=1e-4)
    assert "function_to_apply" in scores({"function_to_apply": "tanh"})


def test_compressed_bodies_are_refused(server):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert request(server.url, b"x", headers)[0] == 415
