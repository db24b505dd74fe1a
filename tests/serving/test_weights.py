"""A server's weights are in its memory: changing or truncating the model folder's files changes nothing."""

from __future__ import annotations

import itertools
import json
import os
import urllib.request
from pathlib import Path

import pytest
import torch

import offramp
from tests.guaranteed import EXACT, TEXTS, save_guaranteed
from tests.server import Server, run_server
from tests.tiny import adaptive

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    return save_guaranteed(tmp_path / "model", EXACT)


def scores(server: Server) -> object:
    body = json.dumps({"inputs": TEXTS}).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url, body), timeout=30) as reply:
        return json.loads(reply.read())


def damage(file: Path) -> None:
    """Overwrite the second half of a file in place."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(bytes(size - size // 2))


CHANGES = (damage, lambda file: os.truncate(file, 0))


def test_a_server_does_not_depend_on_its_files(folder):
    with run_server(folder) as server:
        before = scores(server)
        for change in CHANGES:
            change(folder / "model.safetensors")
            assert scores(server) == before and server.process.poll() is None


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_exported_graphs_are_read_into_memory(folder, backend):
    pytest.importorskip({"onnx": "onnxruntime"}.get(backend, backend))
    offramp.export(folder, None, backend=backend, int8="none")
    files = sorted((folder / backend).glob("*.onnx"))
    runner = offramp.load(folder, backend=backend)
    before = runner.answer(TEXTS).logits
    for file, change in itertools.product(files, CHANGES):
        change(file)
        assert (runner.answer(TEXTS).logits == before).all()
    assert len(files) == 4


def test_tied_weights_stay_tied_and_predictions_equal(tmp_path):
    adaptive("albert", tmp_path / "encoder", num_labels=3).save_pretrained(tmp_path / "model")
    runner = offramp.load(tmp_path / "model")
    encoder, before = runner.stepper.encoder, runner.answer(TEXTS).logits
    first, second = (torch.nn.Linear(4, 4) for _ in range(2))
    encoder.first, encoder.second = first, second
    second.weight.data = first.weight.data  # two parameters, one storage
    second.bias = first.bias  # one parameter, two names
    count = len(list(encoder.parameters()))
    addresses = {part.data_ptr() for part in encoder.parameters()}
    runner.stepper.copy_weights()
    after = {part.data_ptr() for part in encoder.parameters()}
    assert len(list(encoder.parameters())) == count and len(after) == len(addresses) and not after & addresses
    assert first.weight.data_ptr() == second.weight.data_ptr() and first.bias is second.bias
    assert (runner.answer(TEXTS).logits == before).all()


def test_nothing_is_mapped_from_the_folder_after_the_copy(folder):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system has no /proc")
    runner = offramp.load(folder)
    assert str(folder) in maps.read_text()
    runner.stepper.copy_weights()
    assert str(folder) not in maps.read_text()
