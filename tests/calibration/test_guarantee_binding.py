"""A guarantee holds for the model that was tested; any change drops it, with one warning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import offramp
from offramp import AdaptiveModel
from offramp.calibration.choice import CalibrationOptions
from offramp.calibration.risks import Guarantee
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.run import calibrate
from offramp.cli.main import main
from offramp.data.rows import DataOptions
from offramp.data.tasks import TASKS
from offramp.training.holdout import earlier_training_rows, read_hashes
from offramp.training.model import _load_offramp_model
from offramp.training.recipes import make_recipe
from tests.reviews import FAST, rows, settings
from tests.tiny import save_classifier

GUARANTEE = "With 90 % confidence, at most 5 %"


@pytest.fixture(scope="module")
def calibrated(trained, tmp_path_factory):
    """A model with a guarantee."""
    folder = tmp_path_factory.mktemp("guaranteed") / "model"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["calibrate", str(folder), "--risk", "0.05", "--confidence", "0.9", "--temperature"]) == 0
    return folder


def has_guarantee(folder) -> bool:
    """Whether config and model card have the guarantee; both or neither."""
    config = json.loads((folder / "config.json").read_text())
    on_card = GUARANTEE in (folder / "README.md").read_text()
    assert on_card == (config["calibrated"] is not None)
    return on_card


def test_an_unchanged_model_keeps_its_guarantee(calibrated, tmp_path, capsys, caplog):
    saved = json.loads((calibrated / "config.json").read_text())["calibrated"]
    model = AdaptiveModel.from_pretrained(calibrated)
    assert saved["fingerprint"] == model.runner().fingerprint == offramp.load(calibrated).fingerprint
    assert saved["policy"] == str(model.config.exit_policy) and saved["dtype"] == "float32"
    assert has_guarantee(calibrated) and not caplog.records
    assert main(["info", str(calibrated)]) == 0 and GUARANTEE in capsys.readouterr().out
    model.save_pretrained(tmp_path / "copy")
    assert has_guarantee(tmp_path / "copy")
    assert (tmp_path / "copy" / "calibration.json").read_bytes() == (calibrated / "calibration.json").read_bytes()


def changed_weight(model):
    with torch.no_grad():
        next(model.exits.parameters()).add_(1e-3)


def other_policy(model):
    model.config.policy = "entropy:0.6"


def other_exit(model):
    model.config.exits[0]["temperature"] *= 1.5


def other_labels(model):
    model.config.id2label = {0: "bad", 1: "good"}


def other_length(model):
    model.config.max_tokens = 9


def other_tokenizer(model):
    model.tokenizer.add_tokens(["stranger"])


def other_side(model):
    model.tokenizer.truncation_side = "left"


def other_inputs(model):
    model.tokenizer.model_input_names = ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    "change",
    [
        changed_weight,
        torch.nn.Module.half,
        other_policy,
        other_exit,
        other_labels,
        other_length,
        other_tokenizer,
        other_side,
        other_inputs,
    ],
)
def test_a_changed_model_is_saved_without_guarantee(change, calibrated, tmp_path, caplog):
    model = AdaptiveModel.from_pretrained(calibrated)
    change(model)
    model.save_pretrained(tmp_path / "changed")
    assert not has_guarantee(tmp_path / "changed") and not (tmp_path / "changed" / "calibration.json").exists()
    assert len(caplog.records) == 1 and "does not hold here" in caplog.text and "Calibrate again." in caplog.text


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("change", ["weights", "policy", "max_tokens", "dtype", "option"])
def test_a_changed_model_is_loaded_without_guarantee(change, calibrated, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(calibrated, folder)
    options = []
    if change == "weights":
        model = AdaptiveModel.from_pretrained(folder)
        changed_weight(model)
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        from safetensors.torch import save_file

        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    elif change == "policy":
        edited(folder, policy={"name": "entropy", "threshold": 0.69})
    elif change == "max_tokens":
        edited(folder, max_tokens=7)
    else:
        options = ["--dtype", "bfloat16"] if change == "dtype" else ["--max-length", "7"]
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text, _ in rows(20)))
    call = ["evaluate", str(folder), "--file", str(texts), "--no-live", "-o", str(tmp_path / "run"), *options]
    assert main(call) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "the guarantee" in line]
    assert len(notes) == 1 and "does not hold here" in notes[0]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["calibration"] is None
    assert GUARANTEE not in (tmp_path / "run" / "report.html").read_text()
    if not options:
        assert main(["info", str(folder)]) == 0 and GUARANTEE not in capsys.readouterr().out


def test_continued_training_clears_guarantee_policy_and_temperatures(calibrated, reviews, tmp_path):
    before = json.loads((calibrated / "config.json").read_text())
    assert any(spec["temperature"] != 1 for spec in before["exits"]) and before["policy"]["name"] == "entropy"
    call = ["train", calibrated, "--task", "sst-2", "--data-dir", reviews, "-o", tmp_path / "on", "--max-steps", "1"]
    assert main([str(part) for part in (*call, "--cpu", "--batch-size", FAST["batch_size"])]) == 0
    after = json.loads((tmp_path / "on" / "config.json").read_text())
    assert not has_guarantee(tmp_path / "on")
    assert after["policy"] == {"name": "never"} and all(spec["temperature"] == 1 for spec in after["exits"])
    assert after["max_tokens"] == before["max_tokens"]


def test_training_on_learns_with_the_temperatures_that_are_saved(calibrated, tmp_path):
    """The config was cleared, the heads went on dividing by the old temperatures."""
    model = _load_offramp_model(settings(calibrated, tmp_path, tmp_path / "on"), make_recipe("joint"), TASKS["sst-2"])
    assert {head.temperature for head in model.exits.values()} == {1.0}
    edited = AdaptiveModel.from_pretrained(calibrated, dtype=torch.bfloat16)  # whose guarantee is dropped on the way
    edited.save_pretrained(tmp_path / "short")
    again = _load_offramp_model(
        settings(tmp_path / "short", tmp_path, tmp_path / "on"), make_recipe("joint"), TASKS["sst-2"]
    )
    assert again.config.policy == {"name": "never"} and {head.temperature for head in again.exits.values()} == {1.0}


def test_the_runner_in_hand_stays_as_it_was(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))
    runner = offramp.load(folder)
    texts = [text for text, _ in rows(9)]
    before, exits = runner.answer(texts, policy="layer:1"), runner.config.exits
    calibrate(runner, DataOptions(), Guarantee("disagreement", 0.05, 0.9), CalibrationOptions(temperature=True))
    assert (runner.answer(texts, policy="layer:1").logits == before.logits).all() and runner.config.exits == exits
    warm = offramp.load(folder)
    assert warm.config.calibrated["fingerprint"] == warm.fingerprint != runner.fingerprint


# -- training rows -------------------------------------------------------------------------------


def test_a_model_trained_on_has_seen_what_its_parent_saw(trained, reviews, tmp_path, capsys):
    """35 of 43 calibration rows had once been in the parent's training rows, but were reported as held out."""
    parent = read_hashes(trained)
    call = ["train", trained, "--task", "sst-2", "--data-dir", reviews, "-o", tmp_path / "on", "--max-steps", "1"]
    assert main([str(part) for part in (*call, "--cpu", "--seed", "7", "--calibration-split", "0.2")]) == 0
    child = read_hashes(tmp_path / "on")
    assert not np.isin(child["calibration"], parent["train"]).any() and len(child["calibration"]) == 240
    assert np.isin(parent["train"], child["train"]).all() and np.isin(parent["dev"], child["dev"]).all()
    assert earlier_training_rows(tmp_path / "on") == "known"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "on").iterdir() if path.is_file()}
    assert set(modes.values()) == {modes["config.json"]}  # weights were readable by their owner alone
    capsys.readouterr()


def test_what_somebodys_classifier_was_trained_on_is_not_known(reviews, tmp_path, capsys):
    classifier = save_classifier("bert", tmp_path / "clf", num_labels=2)
    config = json.loads((classifier / "config.json").read_text())
    config |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    (classifier / "config.json").write_text(json.dumps(config))
    call = ["train", classifier, "--task", "sst-2", "--data-dir", reviews, "-o", tmp_path / "on", "--max-steps", "1"]
    assert main([str(part) for part in (*call, "--cpu", "--calibration-split", "0.4")]) == 0
    assert "was fine-tuned on unknown rows" in capsys.readouterr().err
    model = AdaptiveModel.from_pretrained(tmp_path / "on")
    rows_of_training = rows_to_calibrate(tmp_path / "on", model.config, model.tokenizer, DataOptions())
    assert rows_of_training.origin == "held out from this training; what its backbone was fine-tuned on is not known"


def test_a_disk_that_fills_while_calibrating_leaves_no_guarantee_on_the_card(trained, tmp_path, monkeypatch, capsys):
    """The card was once written before the config, and could show a guarantee that the config lacks."""
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))
    before = {name: (folder / name).read_bytes() for name in ("config.json", "README.md")}
    replace = Path.replace

    def is_full_for_the_config(self, target):
        if Path(target).name == "config.json":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", is_full_for_the_config)
    assert main(["calibrate", str(folder), "--risk", "0.05", "--confidence", "0.9"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert {name: (folder / name).read_bytes() for name in before} == before
