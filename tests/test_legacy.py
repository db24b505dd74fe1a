"""Model folders, traces, exports and results of an earlier version load and give the same predictions."""

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


def load_case(kind: str) -> tuple[list, dict]:
    """Return the texts and the recorded predictions of a legacy case."""
    texts = json.loads((LEGACY / kind / "texts.json").read_text())
    return [tuple(text) if isinstance(text, list) else text for text in texts], json.loads(
        (LEGACY / kind / "answers.json").read_text()
    )


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_exports_give_the_same_predictions(kind, backend):
    texts, recorded = load_case(kind)
    recorded = recorded[backend]
    runner = offramp.load(LEGACY / kind / "model", backend, threads=1)
    assert str(runner.config.exit_policy) == recorded["policy"]
    assert bool(runner.config.calibrated) == recorded["promised"], "the guarantee still holds"
    if recorded["fingerprint"] is not None:
        assert runner.fingerprint == recorded["fingerprint"]
    answers, expected = [answer.to_dict() for answer in runner.predict(texts, progress=False)], recorded["answers"]
    assert [answer["exit_layer"] for answer in answers] == [answer["exit_layer"] for answer in expected]
    for new, old in zip(answers, expected, strict=True):
        assert new.keys() == old.keys()
        assert {k: v for k, v in new.items() if k != "score"} == {k: v for k, v in old.items() if k != "score"}
        assert new["score"] == pytest.approx(old["score"], abs=2e-5)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_old_traces_replay_the_same(kind, backend):
    texts, recorded = load_case(kind)
    trace = read_trace(LEGACY / kind / f"{backend}.safetensors").with_examples(texts, None)
    policy = offramp.policies.parse(recorded[backend]["policy"])
    assert trace.replay(policy).layer.tolist() == recorded[backend]["replayed"]
    assert len(trace) == 30 and np.isfinite(trace.logits).all()


def test_an_old_trace_can_be_evaluated(tmp_path, capsys):
    texts, _ = load_case("labels")
    shutil.copytree(LEGACY / "labels" / "model", tmp_path / "model")
    result = offramp.evaluate(
        tmp_path / "model", texts, trace=LEGACY / "labels" / "torch.safetensors", live=False, output=tmp_path / "run"
    )
    assert result.results.data.rows == 30


def test_old_results_can_be_compared(capsys):
    run = LEGACY / "classes" / "evaluation"
    results = read_results(run)
    assert results.model.depth == 4 and len(results.policies["entropy"]) == 3 and results.chosen.mean_layers == 1.0
    assert main(["compare", str(run), str(run), "--names", "a,b"]) == 0
    assert "acc (entropy)" in capsys.readouterr().out
