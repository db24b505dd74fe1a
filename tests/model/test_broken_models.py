"""Model folders that are not what they should be: each fault is named, in one line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.calls import answers, fails


def test_truncated_and_corrupt_weights_are_named(copied, texts, capsys):
    file = copied / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not safetensors at all", b"\xff" * 100):
        file.write_bytes(content)
        assert "truncated or corrupt" in fails(capsys, "predict", copied, texts)
        assert "truncated or corrupt" in fails(capsys, "info", copied)


def test_missing_and_unexpected_weights_are_named(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["stranger"] = weights.pop("backbone.encoder.layer.0.output.dense.bias")
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    said = fails(capsys, "predict", copied, texts)
    assert "backbone.encoder.layer.0.output.dense.bias is missing" in said
    assert "stranger is not ours" in said
    (copied / "model.safetensors").unlink()
    assert "model.safetensors" in fails(capsys, "info", copied)


def test_weights_of_another_shape_are_named(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["exits.1.classifier.weight"] = torch.zeros(7, 16)
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "exits.1.classifier.weight is (7, 16) instead of (3, 16)" in fails(capsys, "predict", copied, texts)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"policy": {"name": "entropi"}}, "Did you mean 'entropy'?"),
        ({"policy": {"name": "entropy", "threshold": "x"}}, "must be a number"),
        ({"policy": ["x"]}, "is not a policy"),
        ({"problem_type": "multilabel"}, "No problem type is called 'multilabel'. Known: multi_label_classification"),
        ({"exits": [{"layer": 9}]}, "No layer 9"),
        ({"exits": [{"layer": 4, "head": "strange"}]}, "No head is called"),
        ({"exits": 3}, "config.json: `exits` is 3; it is a list"),
        ({"backbone": {"model_type": "gpt2"}}, "No backbone family is called 'gpt2'"),
        ({"backbone": {"model_type": "nonsense"}}, "nonsense"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, fault, copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    assert fault in fails(capsys, "predict", copied, texts)


def test_a_policy_may_be_written_into_the_config_by_hand(copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"policy": "layer:2"}))
    assert {row["exit_layer"] for row in answers(capsys, "predict", copied, texts)} == {2}


def test_a_plain_model_is_sent_to_from_backbone(folders, texts, capsys):
    for family in ("bert", "roberta", "distilbert", "modernbert"):
        said = fails(capsys, "predict", folders[family], texts)
        assert f"is a plain {family} model; put exits on it with AdaptiveModel.from_backbone" in said


def test_a_config_that_is_no_json_is_refused(copied, texts, capsys):
    (copied / "config.json").write_text("{")
    assert "config.json" in fails(capsys, "predict", copied, texts)


def test_a_model_without_a_tokenizer_says_so(copied, texts, capsys):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    assert "has no tokenizer" in fails(capsys, "predict", copied, texts)


def test_weights_that_are_no_numbers_are_refused_at_the_first_answer(copied, texts, capsys):
    """They were answered with `"score": NaN` and code 0."""
    weights = load_file(copied / "model.safetensors")
    weights["backbone.encoder.layer.0.output.dense.bias"].fill_(float("nan"))
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "Text 1 is answered with NaN or infinity; the model is damaged" in fails(capsys, "predict", copied, texts)
