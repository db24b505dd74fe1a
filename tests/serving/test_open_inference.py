"""Binary tensors, versions and requested outputs of the Open Inference Protocol."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

import offramp
from tests.server import get, request
from tests.serving.conftest import TEXTS

INFER = "/v2/models/model/infer"


def pack(texts) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def infer(server, content, tail=b"", path=INFER, length=None):
    head = json.dumps(content).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(length or len(head))}
    status, headers, body = request(server.url + path, head + tail, headers)
    size = headers.get("inference-header-content-length")
    return status, json.loads(body[: int(size)] if size else body), body[int(size) :] if size else b""


def tensor(texts, name="text", **more):
    size = len(pack(texts))
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "parameters": {"binary_data_size": size}} | more


def test_binary_inputs_and_outputs_are_as_predicted(server, folder):
    expected = list(offramp.load(folder).predict(TEXTS))
    request_body = {"inputs": [tensor(TEXTS)], "parameters": {"binary_data_output": True}}
    status, reply, tail = infer(server, request_body, pack(TEXTS))
    assert status == 200
    sizes = [output["parameters"]["binary_data_size"] for output in reply["outputs"]]
    assert [output["name"] for output in reply["outputs"]] == ["label", "score", "exit_layer"]
    assert sum(sizes) == len(tail)
    assert tail[: sizes[0]] == pack([answer.label for answer in expected])
    assert np.frombuffer(tail[sizes[0] :], "<f4", len(TEXTS)) == pytest.approx([a.score for a in expected], abs=1e-5)
    assert np.frombuffer(tail[-sizes[2] :], "<i8").tolist() == [answer.exit_layer for answer in expected]


def test_requested_outputs_in_their_order_each_binary_or_not(server):
    outputs = [{"name": "exit_layer", "parameters": {"binary_data": True}}, {"name": "label"}]
    status, reply, tail = infer(server, {"inputs": [tensor(TEXTS)], "outputs": outputs}, pack(TEXTS))
    assert status == 200 and [output["name"] for output in reply["outputs"]] == ["exit_layer", "label"]
    assert len(tail) == 8 * len(TEXTS) and len(reply["outputs"][1]["data"]) == len(TEXTS)


def test_pairs_as_two_binary_tensors(server):
    seconds = TEXTS[::-1]
    body = {"inputs": [tensor(TEXTS), tensor(seconds, "text_pair")]}
    status, reply, _ = infer(server, body, pack(TEXTS) + pack(seconds))
    assert status == 200 and reply["outputs"][0]["shape"] == [4]


def test_versions_and_metadata(server):
    assert infer(server, {"inputs": [tensor(TEXTS)]}, pack(TEXTS), "/v2/models/model/versions/1/infer")[0] == 200
    assert infer(server, {"inputs": [tensor(TEXTS)]}, pack(TEXTS), "/v2/models/model/versions/2/infer")[0] == 404
    assert json.loads(get(f"{server.url}/v2/models/model/versions/1")[1])["versions"] == ["1"]
    assert get(f"{server.url}/v2/models/model/versions/1/ready")[0] == 200
    assert get(f"{server.url}/v2/models/model/versions/2/ready")[0] == 404
    assert json.loads(get(f"{server.url}/v2")[1])["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize(
    ("body", "tail", "length", "message"),
    [
        ({"inputs": [tensor(["a"])]}, b"", None, "should have 5 bytes, but only 0 arrived"),
        ({"inputs": [tensor(["a"])]}, b"\x09\0\0\0a", None, "ends in the middle of element 0"),
        ({"inputs": [tensor(["a"])]}, b"\x01\0\0\0\xff", None, "Element 0 of the input 'text' is not UTF-8"),
        ({"inputs": [tensor(["a"])]}, pack(["a"]) + b"more", None, "9 bytes of binary tensors, but the inputs name 5"),
        ({"inputs": [tensor(["a"], shape=[3])]}, pack(["a"]), None, "has 1 texts, but its shape is [3]"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES"}]}, b"", None, "neither `data` nor"),
        ({"inputs": [tensor(["a"])]}, pack(["a"]), "99999", "Invalid header inference-header-content-length: 99999"),
        ({"inputs": [tensor(["a"])]}, pack(["a"]), "x", "Invalid header inference-header-content-length: x"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "z"}]}, pack(["a"]), None, "Unknown output 'z'"),
    ],
)
def test_invalid_binary_requests_are_explained(server, body, tail, length, message):
    status, reply, _ = infer(server, body, tail, length=length)
    assert status == 400 and message in reply["error"]


def test_other_routes_do_not_take_binary_tensors(server):
    status, reply, _ = infer(server, {"inputs": "a"}, b"x", path="/")
    assert status == 400 and "does not accept binary tensors" in reply["error"]
