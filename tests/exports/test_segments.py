"""Segments are cut out of one graph, for any set of exits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")

from offramp import AdaptiveModel
from offramp.core.loop import run_all_exits
from offramp.exports import exporter as exporting
from offramp.exports.exporter import Exporter, GraphSource
from offramp.exports.options import ExportOptions, Texts
from tests.adaptation.test_adapt import random_texts
from tests.tiny import save_encoder, tokenizer

FAMILIES = ["bert", "albert", "deberta-v2", "modernbert", "mpnet"]


def model_of(family, folder, exits):
    model = AdaptiveModel.from_backbone(save_encoder(family, folder), exits=exits, num_labels=3).eval()
    model.tokenizer = tokenizer()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_set_of_exits_answers_as_torch_does(family, tmp_path):
    model = model_of(family, tmp_path / "encoder", [0, 1, 2, 3, 4])
    source, runner = GraphSource(model), model.runner()
    batches = [batch for chunk in runner.chunks(random_texts(20), progress=False) for batch in chunk.batches()]
    for layers in ([0, 1, 2, 3, 4], [0, 4], [1, 3, 4], [4]):
        options = ExportOptions(int8="none", exits=layers, threads=1)
        exporter = Exporter(model, Texts(), options, quiet=True, shared=source)
        stepper = exporter.stepper(exporter.make())
        for batch in batches:
            with torch.inference_mode():
                expected = {output.layer: output.logits for output in run_all_exits(model.stepper, batch)}
                outputs = run_all_exits(stepper, batch)
                assert [output.layer for output in outputs] == layers
                for output in outputs:
                    torch.testing.assert_close(output.logits, expected[output.layer], atol=1e-4, rtol=1e-4)


def test_the_model_is_exported_once_and_its_ranges_are_measured_once(tmp_path, monkeypatch):
    calls = []
    for name in ("export_whole", "observe_ranges"):
        function = getattr(exporting, name)
        monkeypatch.setattr(exporting, name, lambda *a, f=function, n=name: (calls.append(n), f(*a))[1])
    model, texts = model_of("bert", tmp_path / "encoder", [0, 2, 4]), random_texts(30)
    source = GraphSource(model, texts)
    graphs = [
        Exporter(model, Texts(), ExportOptions(int8=int8, exits=exits), quiet=True, shared=source).make().graphs
        for int8, exits in (("static", "all"), ("token", [0, 4]), ("static", [2, 4]), ("none", [4]), ("dynamic", [4]))
    ]
    assert [len(parts) for parts in graphs] == [3, 2, 2, 1, 1]
    assert calls == ["export_whole", *["observe_ranges"] * 3]  # once per segment


def test_a_segment_after_other_segments_quantizes_alike(tmp_path):
    """Ranges belong to tensors, not to segments: the last exit answers the same in one segment or three."""
    model, texts = model_of("bert", tmp_path / "encoder", [0, 2, 4]), random_texts(30)
    source = GraphSource(model, texts)
    outputs = []
    for exits in ([0, 2, 4], [4]):
        options = ExportOptions(int8="static", exits=exits, threads=1)
        exporter = Exporter(model, Texts(), options, quiet=True, shared=source)
        outputs.append(exporter.runner(exporter.make()).answer(texts, policy="never").logits)
    np.testing.assert_allclose(*outputs, atol=1e-5)
