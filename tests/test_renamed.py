"""Names of earlier releases: old options, keys and imports still work, and say what is new."""

from __future__ import annotations

import importlib

import pytest
import yaml

import offramp.policies
from offramp.cli.deprecated import RENAMED, current_names
from offramp.cli.main import main
from offramp.model.renamed import current_calibration
from offramp.training.settings import read_settings
from tests.pages import known_options


def test_old_options_are_translated_with_one_line_each(capsys):
    assert current_names(["calibrate", "m", "--of=accuracy", "--", "--of"]) == [
        "calibrate",
        "m",
        "--risk-type=accuracy",
        "--",
        "--of",
    ]
    assert capsys.readouterr().err == "offramp: --of is deprecated; use --risk-type.\n"
    assert current_names(["predict", "m", "--of"]) == ["predict", "m", "--of"]
    assert {new for names in RENAMED.values() for new in names.values()} <= known_options()


def test_an_old_option_works_on_the_command_line(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "none"), "--of", "accuracy"]) == 2
    deprecation, error = capsys.readouterr().err.splitlines()
    assert "--of is deprecated" in deprecation and "is not a folder" in error


def test_old_keys_are_read():
    old = {"promise": {"of": "disagreement", "risk": 0.02}, "sentence": "s"}
    assert current_calibration(old) == {"guarantee": {"risk_type": "disagreement", "risk": 0.02}, "sentence": "s"}
    assert current_calibration(None) is None


def test_an_old_training_file_is_read(tmp_path):
    (tmp_path / "training.yaml").write_text(yaml.safe_dump({"recipe": "imitate", "recipe_options": {"hard": 0.5}}))
    assert read_settings(tmp_path / "training.yaml")["recipe_options"] == {"label_weight": 0.5}


def test_the_old_class_name_warns():
    with pytest.warns(DeprecationWarning, match="use RiskModel"):
        assert importlib.import_module("offramp.policies").Judged is offramp.policies.RiskModel


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("entropy:0.2", "entropy, threshold 0.2"),
        ("entropy:0.1,0.2,0.3", "entropy, one threshold per exit"),
        ("patience:3:0.1", "patience 3, tolerance 0.1"),
        ("risk:0.16252:1,2:3,4", "risk model, threshold 0.163"),
        ("layer:6", "layer 6"),
        ("never", "no early exits"),
    ],
)
def test_policies_have_a_short_form_for_people(policy, text):
    assert offramp.policies.parse(policy).describe() == text
