"""The table per class of an evaluation, and the reminder that predictions are outside a guarantee."""

from __future__ import annotations

import json
import shutil

import pytest

import offramp
from offramp.cli.main import main
from offramp.model.class_table import class_table_rows
from offramp.model.fingerprint import fingerprint_model
from tests.calls import fails
from tests.tiny import adaptive


@pytest.fixture
def model(trained, tmp_path):
    """A calibrated copy of a trained model."""
    copy = tmp_path / "model"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["calibrate", str(copy), "--risk", "0.05"]) == 0
    return copy


def test_evaluate_shows_and_saves_what_every_class_keeps(model, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["evaluate", str(model), "--no-live", "--output", str(run)]) == 0
    out = capsys.readouterr().out
    assert "full model's class  rows  same (%)  95 % interval" in out
    results = json.loads((run / "results.json").read_text())
    classes, rows = results["classes"], results["data"]["rows"]
    assert {entry["name"] for entry in classes} <= set(results["model"]["labels"])
    assert sum(entry["rows"] for entry in classes) == rows
    kept = sum(entry["kept"] for entry in classes)
    assert kept / rows == pytest.approx(results["chosen"]["agreement"])
    assert all(low <= entry["kept"] / entry["rows"] <= high for entry in classes for low, high in [entry["interval"]])


def test_predictions_outside_the_guarantee_are_reminded_of(model, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("a good film\na dull plot\n")

    def reminder(*options: str) -> str:
        assert main(["predict", str(model), str(texts), *options]) == 0
        return capsys.readouterr().err

    covered = "The model's guarantee does not cover predictions with"
    capsys.readouterr()
    assert covered not in reminder() and covered not in reminder("--policy", "never")
    assert reminder("--policy", "entropy:0.5").count(f"{covered} the policy entropy, threshold 0.5.") == 1
    assert f"{covered} the policy" in reminder("--threshold", "0.6")
    assert f"{covered} --max-layers." in reminder("--max-layers", "2")


def test_the_device_is_part_of_the_fingerprint(tmp_path):
    runner = adaptive("bert", tmp_path / "encoder", num_labels=2).runner()
    facts = (runner.config, runner.tokenizer, "weights", 38, "torch", "float32")
    assert fingerprint_model(*facts) == fingerprint_model(*facts, "cpu") != fingerprint_model(*facts, "cuda")
    assert (
        runner.fingerprint
        == offramp.AdaptiveModel.runner(adaptive("bert", tmp_path / "encoder", num_labels=2)).fingerprint
    )


def test_many_classes_are_shortened_to_those_that_lose_most():
    classes = [{"name": f"c{i}", "rows": 10, "kept": 10 - i % 3, "interval": (0.1, 0.9)} for i in range(50)]
    limits = [
        {"name": "c2", "kind": "class", "risk": 0.1, "classes": ["c2"], "tested": True, "missing": 0},
        {"name": "recall of c1", "kind": "recall", "risk": 0.01, "classes": [], "rows": 200, "changed": 1},
        {"name": "2 rare", "kind": "class", "risk": 0.1, "classes": ["c5", "c8"], "tested": False, "missing": 7},
    ]
    rows = class_table_rows(classes, limits)
    assert len(rows) == 22 and rows[0][:3] == ["c2", "10", "80.0 %"] and rows[0][4] == "≥ 90 %"
    assert [row[4] for row in rows if row[0] == "c5"] == ["no: 7 more rows needed"]
    assert rows[20][0] == "30 others" and rows[21] == ["recall of c1", "200", "99.5 %", "", "≥ 99 %"]


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": 3},
        {"limits": [{"name": "a"}]},
        {"classes": [{"name": "a", "rows": "many", "kept": 1, "interval": [0, 1]}]},
        {"classes": ["a"]},
    ],
)
def test_damaged_tables_are_one_line(changes, model, tmp_path, capsys):
    config = json.loads((model / "config.json").read_text())
    config["calibrated"] |= changes
    (model / "config.json").write_text(json.dumps(config))
    (name,) = changes
    assert f"`calibrated.{name}` is invalid" in fails(capsys, "predict", model, "-")
