from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from offramp import AdaptiveModel
from offramp.errors import BadModel
from offramp.originals.convert import CHECKPOINT_KINDS, ConvertOptions, convert, detect, read

GOLDEN = Path(__file__).parents[1] / "golden"


def inputs(case: str) -> dict[str, torch.Tensor]:
    tensors = load_file(GOLDEN / case / "inputs.safetensors")
    return {key: tensors[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in tensors}


def test_faithful_can_be_set_when_a_model_is_loaded(tmp_path):
    case = "deebert-bert-2"
    convert(GOLDEN / case / "checkpoint", tmp_path / "sane")
    convert(GOLDEN / case / "checkpoint", tmp_path / "faithful", options=ConvertOptions(faithful=True))
    sane = AdaptiveModel.from_pretrained(tmp_path / "sane")
    loaded_faithful = AdaptiveModel.from_pretrained(tmp_path / "sane", faithful=True)
    faithful = AdaptiveModel.from_pretrained(tmp_path / "faithful")
    out = [model(**inputs(case), policy="entropy:0.147").logits for model in (sane, loaded_faithful, faithful)]
    assert torch.equal(out[1], out[2])
    assert not torch.equal(out[0], out[1])
    assert len(sane.stepper.exits) == 6
    assert len(faithful.stepper.exits) == 7


def test_a_converted_model_survives_being_saved_again(tmp_path):
    case = "berxit-roberta"
    convert(GOLDEN / case / "checkpoint", tmp_path / "first")
    first = AdaptiveModel.from_pretrained(tmp_path / "first")
    first.save_pretrained(tmp_path / "second")
    second = AdaptiveModel.from_pretrained(tmp_path / "second")
    for model in (first, second):
        assert model.config.lte
        assert model.config.ramp == "judges"
    out = [model(**inputs(case), output_exits=True) for model in (first, second)]
    assert torch.equal(out[0].exit_logits, out[1].exit_logits)
    assert torch.equal(out[0].exit_uncertainty, out[1].exit_uncertainty)


def test_old_names_and_half_precision_are_read(tmp_path):
    source = tmp_path / "old"
    source.mkdir()
    weights = torch.load(GOLDEN / "pabee-bert" / "checkpoint" / "pytorch_model.bin", weights_only=True)
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.half()
        if value.is_floating_point()
        else value
        for key, value in weights.items()
    }
    torch.save(old, source / "pytorch_model.bin")
    (source / "config.json").write_bytes((GOLDEN / "pabee-bert" / "checkpoint" / "config.json").read_bytes())
    convert(source, tmp_path / "model")
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.float32
    stored = model.state_dict()["backbone.embeddings.LayerNorm.weight"]
    torch.testing.assert_close(stored, weights["bert.embeddings.LayerNorm.weight"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_released_elasticbert_is_read_with_or_without_its_prefix(prefix, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    weights = torch.load(GOLDEN / "elasticbert-released" / "checkpoint" / "pytorch_model.bin", weights_only=True)
    if not prefix:
        weights = {key.removeprefix("elasticbert."): value for key, value in weights.items()}
    extra = {"sop_classifier.classifiers.0.weight": torch.zeros(2, 32), "cls.seen": torch.zeros(1)}
    torch.save(weights | extra, source / "pytorch_model.bin")
    config = (GOLDEN / "elasticbert-released" / "checkpoint" / "config.json").read_bytes()
    (source / "config.json").write_bytes(config)
    notes = convert(source, tmp_path / "model")
    assert any("train them" in note for note in notes)
    for model in (
        AdaptiveModel.from_pretrained(tmp_path / "model"),
        AdaptiveModel.from_backbone(source, num_labels=2),
    ):
        dense = model.exits.head(3).dense.weight
        key = "elasticbert.encoder.pooler.2.dense.weight" if prefix else "encoder.pooler.2.dense.weight"
        assert torch.equal(dense, weights[key])


def test_kinds_are_detected_by_their_keys():
    detected = {case.parent.name: detect(read(case)).name for case in GOLDEN.glob("*/checkpoint")}
    assert len(detected) == 29
    for case, kind in detected.items():
        assert kind == case.split("-")[0].replace("romebert", "deebert"), case
    assert sorted(CHECKPOINT_KINDS) == ["berxit", "deebert", "ebert", "elasticbert", "pabee", "romebert"]


def test_the_error_for_an_ordinary_classifier_names_adapt(folders):
    with pytest.raises(BadModel, match="offramp adapt"):
        detect(read(folders["bert"]))
