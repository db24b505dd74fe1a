"""Folders, traces, exports and results that an earlier version wrote load, and answer the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import offramp
from offramp.cli.main import main
from offramp.evaluation.results import read_results
from offramp.evaluation.traces.reading import read_trace

LEGACY = Path(__file__).parent / "legacy"
KINDS = ("classes", "labels", "value", "spans")


def written(kind: str) -> tuple[list, dict]:
    texts = json.loads((LEGACY / kind / "texts.json").read_text())
    return [tuple(text) if isinstance(text, list) else text for text in texts], json.loads(
        (LEGACY / kind / "answers.json").read_text()
    )


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_exports_answer_the_same(kind, backend):
    texts, before = written(kind)
    before = before[backend]
    runner = offramp.load(LEGACY / kind / "model", backend, threads=1)
    assert str(runner.config.exit_policy) == before["policy"]
    assert bool(runner.config.calibrated) == before["promised"], "a guarantee is about the same model still"
    if before["fingerprint"] is not None:
        assert runner.fingerprint == before["fingerprint"]
    found = [answer.to_dict() for answer in runner.predict(texts, progress=False)]
    assert [one["exit_layer"] for one in found] == [one["exit_layer"] for one in before["answers"]]
    for ours, theirs in zip(found, before["answers"], strict=True):
        assert ours.keys() == theirs.keys()
        assert {k: v for k, v in ours.items() if k != "score"} == {k: v for k, v in theirs.items() if k != "score"}
        assert ours["score"] == pytest.approx(theirs["score"], abs=2e-5)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_traces_replay_the_same(kind, backend):
    texts, before = written(kind)
    trace = read_trace(LEGACY / kind / f"{backend}.safetensors").with_examples(texts, None)
    policy = offramp.policies.parse(before[backend]["policy"])
    assert trace.replay(policy).layer.tolist() == before[backend]["replayed"]
    assert len(trace) == 30 and np.isfinite(trace.logits).all()


def test_a_trace_of_before_serves_an_evaluation_of_today(tmp_path, capsys):
    texts, _ = written("labels")
    shutil.copytree(LEGACY / "labels" / "model", tmp_path / "model")
    result = offramp.evaluate(
        tmp_path / "model", texts, trace=LEGACY / "labels" / "torch.safetensors", live=False, output=tmp_path / "run"
    )
    assert result.results.data.rows == 30


def test_results_of_before_can_be_compared(capsys):
    run = LEGACY / "classes" / "evaluation"
    results = read_results(run)
    assert results.model.depth == 4 and len(results.policies["entropy"]) == 3 and results.chosen.mean_layers == 1.0
    assert main(["compare", str(run), str(run), "--names", "a,b"]) == 0
    assert "acc by entropy" in capsys.readouterr().out
