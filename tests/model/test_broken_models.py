"""Invalid model folders: each error is reported in one line."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file

import offramp
from offramp.errors import BadModel
from tests.calls import fails, json_lines
from tests.tiny import adaptive


def test_truncated_and_corrupt_weights_are_reported(copied, texts, capsys):
    file = copied / "model.safetensors"
    original = file.read_bytes()
    for content in (original[: len(original) // 2], b"", b"not safetensors at all", b"\xff" * 100):
        file.write_bytes(content)
        assert "truncated or corrupt" in fails(capsys, "predict", copied, texts)
        assert "truncated or corrupt" in fails(capsys, "info", copied)


def test_missing_and_unexpected_weights_are_reported(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["stranger"] = weights.pop("backbone.encoder.layer.0.output.dense.bias")
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    message = fails(capsys, "predict", copied, texts)
    assert "backbone.encoder.layer.0.output.dense.bias is missing" in message
    assert "stranger is unexpected" in message
    (copied / "model.safetensors").unlink()
    assert "model.safetensors" in fails(capsys, "info", copied)


def test_weights_of_another_shape_are_reported(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["exits.1.classifier.weight"] = torch.zeros(7, 16)
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "exits.1.classifier.weight has shape (7, 16) instead of (3, 16)" in fails(capsys, "predict", copied, texts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": {"name": "entropi"}}, "Did you mean 'entropy'?"),
        ({"policy": {"name": "entropy", "threshold": "x"}}, "must be a number"),
        ({"policy": ["x"]}, "is not a policy"),
        ({"problem_type": "multilabel"}, "Unknown problem type 'multilabel'. Available: multi_label_classification"),
        ({"exits": [{"layer": 9}]}, "`exits` must be layers from 0 to 4, got 9"),
        ({"exits": [{"layer": 4, "head": "strange"}]}, "Unknown head"),
        ({"exits": 3}, "config.json: `exits` must be a non-empty list, got 3"),
        ({"backbone": {"model_type": "gpt2"}}, "Unknown backbone family 'gpt2'"),
        ({"backbone": {"model_type": "nonsense"}}, "nonsense"),
    ],
)
def test_an_invalid_config_raises(change, message, copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    assert message in fails(capsys, "predict", copied, texts)


def test_a_policy_may_be_written_into_the_config_by_hand(copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"policy": "layer:2"}))
    assert {row["exit_layer"] for row in json_lines(capsys, "predict", copied, texts)} == {2}


@pytest.mark.parametrize("command", ["predict", "info"])
def test_the_error_for_a_plain_classifier_names_adapt(command, folders, texts, capsys):
    for family in ("bert", "roberta", "distilbert", "modernbert"):
        message = fails(capsys, command, folders[family], *([texts] if command == "predict" else []))
        assert f"is a {family} model without exits. Make it faster with `offramp adapt {folders[family]}" in message
    with pytest.raises(BadModel, match=r"Make it faster with `offramp\.adapt\("):
        offramp.load(folders["bert"])


def test_the_error_for_a_plain_encoder_names_train(encoders, texts, capsys):
    message = fails(capsys, "predict", encoders["bert"], texts)
    assert f"is a bert encoder without exits. Train exits with `offramp train {encoders['bert']} --train" in message


def test_a_config_that_is_not_json_raises(copied, texts, capsys):
    (copied / "config.json").write_text("{")
    assert "config.json" in fails(capsys, "predict", copied, texts)


def test_a_model_without_a_tokenizer_raises(copied, texts, capsys):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    assert "has no tokenizer" in fails(capsys, "predict", copied, texts)


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="sentencepiece is installed")
@pytest.mark.parametrize(("family", "file"), [("albert", "spiece.model"), ("xlm-roberta", "sentencepiece.bpe.model")])
def test_a_sentencepiece_tokenizer_names_its_extra(family, file, tmp_path, texts, capsys):
    adaptive(family, tmp_path / "encoder").save_pretrained(tmp_path / "model")
    for tokenizer_file in tmp_path.glob("model/tokenizer*"):
        tokenizer_file.unlink()
    (tmp_path / "model" / file).write_bytes(b"what only sentencepiece reads")
    message = fails(capsys, "predict", tmp_path / "model", texts)
    assert "model needs sentencepiece" in message and "[sentencepiece]'" in message


def test_nan_weights_raise_at_the_first_prediction(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["backbone.encoder.layer.0.output.dense.bias"].fill_(float("nan"))
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "The logits of text 1 are NaN or infinite" in fails(capsys, "predict", copied, texts)
