"""The metadata of a model card, and what `push_to_hub` uploads, read as a stranger would."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from offramp import AdaptiveModel
from offramp.errors import BadModel
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import export
from offramp.model import card, guarantee
from tests.hub import local_hub
from tests.tiny import adaptive, save_encoder

EVIDENCE = {
    "guarantee": {"risk": 0.1, "risk_type": "disagreement"},
    "sentence": "tested",
    "machine": {"backend": "torch", "dtype": "float32"},
    "rows": 400,
    "losses": 6.0,
    "speedup": 2.345,
    "classes": [{"name": "no", "rows": 200, "kept": 197, "interval": [0.95, 0.99]}],
}
FACTS = {
    "base_model": "someone/encoder",
    "datasets": ["nyu-mll/glue"],
    "scores": [{"metric": "acc", "value": 0.91, "dataset": "sst-2", "split": "dev", "hub": "nyu-mll/glue"}],
}


def metadata(text: str) -> dict:
    start, front, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a guarantee, scores and an export."""
    root = tmp_path_factory.mktemp("card")
    adaptive("bert", root / "encoder", labels=["no", "yes"], policy="entropy:0.5").save_pretrained(root / "model")
    model = AdaptiveModel.from_pretrained(root / "model")
    model.config.card = FACTS
    guarantee.bind(model.config, model.config.exit_policy, EVIDENCE, model.runner().fingerprint)
    model.save_pretrained(root / "tested")
    (root / "tested" / card.EVIDENCE).write_text(json.dumps(EVIDENCE))
    export(AdaptiveModel.from_pretrained(root / "tested"), Texts(), ExportOptions(int8="none"))
    return root / "tested"


def test_metadata(folder):
    data = metadata((folder / "README.md").read_text())
    assert (data["library_name"], data["pipeline_tag"]) == ("offramp", "text-classification")
    assert (data["base_model"], data["datasets"], data["tags"]) == (
        "someone/encoder",
        ["nyu-mll/glue"],
        ["early-exit", "bert"],
    )
    (model,) = data["model-index"]
    metrics = {metric["type"]: metric["value"] for result in model["results"] for metric in result["metrics"]}
    assert metrics == {"acc": 0.91, "agreement": 0.985, "layer_speedup": 2.35}
    plain = metadata(card.model_card(adaptive("bert", folder.parent / "other", num_labels=2).config))
    assert not {"model-index", "base_model", "datasets"} & set(plain)  # nothing is invented


def test_metadata_does_not_change_the_fingerprint_and_is_checked(folder):
    model = AdaptiveModel.from_pretrained(folder)
    before = model.runner().fingerprint
    model.config.card = None
    assert model.runner().fingerprint == before and model.config.calibrated
    with pytest.raises(BadModel, match=r"`card` is invalid \(base_model is 3\)"):
        type(model.config)(backbone=model.config.backbone, card={"base_model": 3})


def test_what_is_pushed_can_be_used_by_a_stranger(folder, tmp_path):
    """The real code of huggingface_hub, in a separate process, against a local Hub."""
    encoder = save_encoder("bert", tmp_path / "encoder")
    script = f"""
import offramp
from offramp import AdaptiveModel
fresh = AdaptiveModel.from_backbone("someone/encoder", num_labels=2)
assert fresh.config.card == {{"base_model": "someone/encoder"}}
fresh.save_pretrained({str(tmp_path / "model")!r})
model = AdaptiveModel.from_pretrained({str(folder)!r})
model.push_to_hub("someone/adaptive", token="hf_test")
again = AdaptiveModel.from_pretrained("someone/adaptive")
texts = ["a lovely film", "the plot was dull"]
assert [str(answer) for answer in model.predict(texts)] == [str(answer) for answer in again.predict(texts)]
exported = offramp.load("someone/adaptive", backend="onnx", threads=1)
assert exported.answer(texts).layer.tolist() == [answer.exit_layer for answer in model.predict(texts)]
"""
    with local_hub() as hub:
        hub.files |= {file.name: file.read_bytes() for file in encoder.iterdir()}
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
    # saved with the tokenizer of the Hub
    assert len(list(AdaptiveModel.from_pretrained(tmp_path / "model").predict(["a film", ("a", "film")]))) == 2
    files = {"config.json", "model.safetensors", "tokenizer.json", "modeling_offramp.py", card.EVIDENCE}
    assert files | {"onnx/offramp.json", "onnx/exit-4.onnx"} <= set(hub.files)
    config, text = json.loads(hub.files["config.json"]), hub.files["README.md"].decode()
    assert config["auto_map"]["AutoConfig"] == "modeling_offramp.AdaptiveConfig"
    assert json.loads(hub.files[card.EVIDENCE]) == EVIDENCE
    assert metadata(text) == metadata((folder / "README.md").read_text())
    for snippet in (
        'offramp.load("someone/adaptive")',
        'offramp.load("someone/adaptive", backend="onnx")',
        "offramp predict someone/adaptive texts.txt",
        "offramp serve someone/adaptive",
        "trust_remote_code=True",
    ):
        assert snippet in text, snippet
    assert card.PLACE not in text and "tested Details are in `calibration.json`" in text and "| no | 200 |" in text


def test_a_card_of_your_own_is_not_changed():
    assert card.card_on_hub(f"Load {card.PLACE}.", "someone/adaptive") == f"Load {card.PLACE}."
