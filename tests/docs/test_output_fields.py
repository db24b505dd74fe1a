"""The page about output files names every field that the commands write."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from safetensors import safe_open

from offramp.cli.main import main
from offramp.training.settings import Settings
from tests.docs.running import KINDS, TEXTS, evidence, run_page
from tests.pages import (
    keys,
    known_options,
    named,
    read,
    sections,
)
from tests.tiny import LAYERS

pytestmark = pytest.mark.usefixtures("one_thread")


def test_outputs_runs_and_names_every_field(place):
    run_page("reference/output-files.md")
    parts = sections(read("reference/output-files.md"))
    model, run = place / "my-model", place / "run"
    folder, evaluation = named(parts["Model folder"]), named(parts["evaluate"])
    assert set(json.loads((model / "config.json").read_text())) <= folder
    scores = json.loads((model / "scores.json").read_text())
    assert set(scores) | keys(scores["stages"], 1) <= folder
    calibration = evidence(place)
    assert keys({name: calibration[name] for name in ("guarantee", "tested")}, 2) | set(calibration) <= folder
    about = {name: calibration[name] for name in ("model", "data", "machine")}
    results = json.loads((run / "results.json").read_text())
    assert keys(about, 2) | keys(results, 2) <= evaluation
    assert set((run / "curve.csv").read_text().splitlines()[0].split(",")) <= evaluation
    assert {file.name for file in run.iterdir() if file.suffix != ".npy"} <= evaluation
    assert set(json.loads((place / "comparison" / "comparison.json").read_text())) <= named(parts["compare"])
    for file, words in ((model / "rows.safetensors", folder), (run / "trace.safetensors", evaluation)):
        with safe_open(file, framework="np") as opened:
            assert {*opened.keys(), *opened.metadata()} <= words
    assert {file.name for file in model.iterdir()} <= folder
    assert np.load(run / "entropy.npy").shape[1] == 9 and np.load(run / "each_layer.npy").shape == (LAYERS,)


def test_training_yaml_holds_every_option(home):
    written = yaml.safe_load((home / "my-model" / "training.yaml").read_text())
    assert set(written) == set(Settings.__dataclass_fields__)
    options = {f"--{name.replace('_', '-')}" for name in written}
    assert options - known_options() == {"--backbone", "--recipe-options"}


def test_speed_writes_the_fields_that_the_page_tells(place):
    assert main(["calibrate", "my-model", "--speedup", "1.5"]) == 0
    found = evidence(place)
    assert found["guarantee"] is None
    assert set(found) <= named(sections(read("reference/output-files.md"))["Model folder"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ranking"])  # rankings have no `--all-scores`
def test_predict_writes_the_fields_that_the_page_tells(kind, models, tmp_path, capsys):
    models[kind].save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    call = ["predict", str(tmp_path / "model"), str(tmp_path / "texts.txt"), "--all-scores"]
    assert main(call) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(answer) == {"label", "score", "exit_layer", "scores"} for answer in answers)
    assert main([*call, "--format", "tsv"]) == 0
    head, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert head == ["label", "score", "exit_layer", *(f"score_{label}" for label in answers[0]["scores"])]
    first, last = answers[0], [line[0] for line in lines]
    if kind == "regression":
        assert first["label"] is None and set(last) == {""} and first["scores"] == {"LABEL_0": first["score"]}
    elif kind == "several":
        assert [",".join(answer["label"]) for answer in answers] == last
        assert all(answer["score"] == max(answer["scores"].values()) for answer in answers)
        assert all((answer["label"] == []) is (answer["score"] <= 0.5) for answer in answers)
    else:
        assert first["score"] == first["scores"][first["label"]] and last[0] == first["label"]
