"""A model folder in plain transformers: with `trust_remote_code=True`, with and without offramp installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offramp import AdaptiveModel
from tests.programs import Completed
from tests.tiny import adaptive

CODE = """
import sys
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline
folder = sys.argv[1]
assert "offramp" not in sys.modules
AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
classify = pipeline("text-classification", model=folder, trust_remote_code=True)
print(type(model).__module__, classify("a lovely film")[0]["label"])
model.save_pretrained(sys.argv[2])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("remote")
    adaptive("bert", root / "encoder", labels=["no", "yes"], policy="entropy:0.5").save_pretrained(root / "model")
    return str(root / "model")


def run(fresh, folder: str, cache: Path, hidden: str = "") -> Completed:
    return fresh.run(CODE, folder, str(cache / "saved"), hidden=hidden, HF_MODULES_CACHE=str(cache))


def test_with_offramp_installed_trust_remote_code_loads_the_model(fresh, folder, tmp_path):
    done = run(fresh, folder, tmp_path)
    assert done.code == 0, done.stderr
    module, label = done.stdout.split()
    (expected,) = AdaptiveModel.from_pretrained(folder).predict(["a lovely film"])
    assert (module, label) == ("offramp.model.adaptive", expected.label)
    saved = {path.name for path in (tmp_path / "saved").iterdir()}  # no copy of offramp's own code
    assert {name for name in saved if name.endswith(".py")} == {"modeling_offramp.py"}
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["auto_map"] == json.loads(Path(folder, "config.json").read_text())["auto_map"]


def test_without_offramp_transformers_names_the_package_to_install(fresh, folder, tmp_path):
    done = run(fresh, folder, tmp_path, hidden="offramp")
    assert done.code == 1
    error = done.stderr.strip().splitlines()[-1]
    assert "requires the following packages" in error and "offramp" in error and "pip install offramp" in error


def test_the_code_is_two_names_and_the_guarantee_does_not_depend_on_it(folder, tmp_path):
    config = json.loads((AdaptiveModel.from_pretrained(folder).config).to_json_string())
    assert config["auto_map"]["AutoModelForSequenceClassification"] == "modeling_offramp.AdaptiveModel"
    code = Path(folder, "modeling_offramp.py").read_text()
    assert "from offramp import AdaptiveConfig, AdaptiveModel\n" in code and code.count("import") == 1
    model = AdaptiveModel.from_pretrained(folder)
    fingerprint = model.runner().fingerprint
    del model.config.auto_map  # as in folders of earlier versions
    assert model.runner().fingerprint == fingerprint
