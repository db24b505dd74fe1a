"""Exits on layer 0, which read the embeddings: config, loop, thresholds, costs, traces, exports and reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import offramp
from offramp.cli.main import main
from offramp.core.batch import Batch
from offramp.core.loop import exits_within, run, run_all_exits
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.traces.operations import count_operations
from offramp.evaluation.traces.recording import record
from offramp.policies import Entropy, Layer, Never
from tests.tiny import FAMILY_NAMES, WORDS, adaptive, random_batch

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(random.choice(WORDS, int(random.integers(2, 9)))) for _ in range(2 * count)))[
        :count
    ]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_an_exit_on_layer_0_reads_the_embeddings(family, tmp_path):
    model = adaptive(family, tmp_path / "encoder", exits=[0, 2, 4], num_labels=3)
    assert [point.layer for point in model.config.exit_points] == [0, 2, 4]
    batch = random_batch(5, 3, types=family in ("bert", "albert", "elasticbert", "electra"))
    tensors = Batch.from_tensors(**batch)
    with torch.no_grad():
        outputs = run_all_exits(model.stepper, tensors)
        embedded = model.stepper.embed(tensors)
        alone = model.stepper.run_head(embedded, model.exits.points[0])[0]
        torch.testing.assert_close(outputs[0].logits, alone, **CLOSE)
        for layer, output in zip((0, 2, 4), outputs, strict=True):
            result = run(model.stepper, tensors, Layer(layer))
            torch.testing.assert_close(result.logits, output.logits, **CLOSE)
            assert set(result.layer.tolist()) == {layer}
        entropies = outputs[0].answer_type.entropy(outputs[0].logits)
        result = run(model.stepper, tensors, Entropy(float(entropies.median()) + 1e-6))
        assert (result.layer == 0).sum() >= 2
        rows = torch.from_numpy(np.flatnonzero(result.layer == 0))
        torch.testing.assert_close(result.logits[rows], outputs[0].logits[rows], **CLOSE)
    model.save_pretrained(tmp_path / "model")
    again = offramp.AdaptiveModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again(**batch, policy="layer:0").logits, outputs[0].logits, **CLOSE)


def test_max_layers_of_0(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", exits=[0, 4], num_labels=2)
    assert [point.layer for point in exits_within(model.stepper.exits, 0)] == [0]
    assert model(**random_batch(3, 1), max_layers=0).exit_layer.tolist() == [0, 0, 0]
    with pytest.raises(offramp.OfframpError, match=r"at least 1 \(the first exit's layer\)"):
        exits_within(adaptive("bert", tmp_path / "other", num_labels=2).stepper.exits, 0)


def test_costs_of_layer_0_are_counted_without_division_by_zero(tmp_path):
    cost = layer_cost(np.array([0, 0, 4, 2]), 4)
    assert cost.rows_per_layer == (2, 0, 1, 0, 1) and cost.mean_layers == 1.5 and cost.speedup == 4 / 1.5
    assert layer_cost(np.zeros(3), 4).mean_layers == 0 and layer_cost(np.zeros(3), 4).speedup == float("inf")
    config = adaptive("bert", tmp_path / "encoder", exits=[0, 1, 4], num_labels=2).config
    spent, heads = count_operations(config).at(np.array([8]))
    assert 0 < spent[0, 0] < spent[0, 1] < spent[0, 2] and spent[0, 0] == heads[0, 0]


@pytest.mark.parametrize("policy", ["layer:0", "entropy:2", "entropy:0.9"])
def test_traces_and_reports_include_layer_0(policy, tmp_path, capsys):
    model = adaptive("bert", tmp_path / "encoder", exits=[0, 2, 4], labels=["x", "y", "z"])
    model.save_pretrained(tmp_path / "model")
    rows, runner = texts(40, 1), offramp.load(tmp_path / "model")
    trace = record(runner, rows, None, tmp_path / "trace.safetensors", "rows", progress=False)
    live = runner.answer(rows, policy=policy)
    assert trace.replay(offramp.policies.parse(policy)).layer.tolist() == live.layer.tolist()
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n")
    out = tmp_path / "run"
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "model"),
                "--file",
                str(tmp_path / "rows.txt"),
                "--policy",
                policy,
                "-o",
                str(out),
            ]
        )
        == 0
    )
    results = json.loads((out / "results.json").read_text())
    assert results["chosen"]["mean_layers"] == pytest.approx(live.layer.mean())
    assert sum(results["chosen"]["exits"]) == 40 and results["chosen"]["exits"][0] == int((live.layer == 0).sum())
    if live.layer.max() == 0:
        assert results["chosen"]["speedup"] is None and "∞ ×" in capsys.readouterr().out
    assert results["exits"][0]["layer"] == 0


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert", "mpnet"])
def test_an_export_with_layer_0_matches_torch(family, tmp_path):
    pytest.importorskip("onnxruntime")
    model = adaptive(family, tmp_path / "encoder", exits=[0, 2, 4], labels=["x", "y", "z"])
    model.save_pretrained(tmp_path / "model")
    rows = texts(30, 2)
    export = offramp.export(tmp_path / "model", rows, backend="onnx", int8="none", threads=1)
    assert export.layers == (0, 2, 4) and export.agreement == {0: 1.0, 2: 1.0, 4: 1.0}
    torch_, onnx = offramp.load(tmp_path / "model"), offramp.load(tmp_path / "model", "onnx", threads=1)
    for policy in ("layer:0", "never", "entropy:0.9"):
        expected, exported = torch_.answer(rows, policy=policy), onnx.answer(rows, policy=policy)
        assert exported.layer.tolist() == expected.layer.tolist()
        np.testing.assert_allclose(exported.logits, expected.logits, atol=2e-4)


def test_a_guarantee_and_thresholds_per_exit(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", exits=[0, 2, 4], labels=["x", "y", "z"])
    model.save_pretrained(tmp_path / "model")
    result = offramp.calibrate(
        tmp_path / "model", texts(500, 3), risk=0.45, confidence=0.9, policy="entropy", per_exit=True
    )
    assert result.evidence["tested"]
    runner = offramp.load(tmp_path / "model")
    assert runner.answer(texts(9, 4), policy="entropy:2,2").layer.tolist() == [0] * 9
    assert runner.answer(texts(9, 4), policy="entropy:0,2").layer.tolist() == [2] * 9
    assert set(runner.answer(texts(9, 4), policy=Never()).layer.tolist()) == {4}
