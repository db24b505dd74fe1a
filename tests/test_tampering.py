"""Edited files: errors name the file and the field in one line; harmless changes are accepted."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from offramp.cli.main import main
from tests.attempts import attempt, snapshot
from tests.calls import fails, json_lines
from tests.evaluation.test_compare import write_run
from tests.tampering import (
    REMOVED,
    calls,
    header,
    tamper_json,
    tamper_model,
    tamper_trace,
    with_value,
    write_data,
    write_model,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A trained model, its data, a trace and an evaluation."""
    root = tmp_path_factory.mktemp("world")
    data = write_data(root / "data")
    write_model(root / "model", "bert", data)
    shutil.copytree(root / "model", root / "calibrated")
    assert attempt(calibration(root / "calibrated", data, root / "trace.safetensors")).code == 0
    write_run(root / "run", [(4, 0.8), (2, 0.7)])
    return root


def calibration(model, data, trace):
    """Return a calibration command that reads the trace, or records it."""
    options = ["--file", str(data / "dev.csv"), "--trace", str(trace)]
    return ["calibrate", str(model), "--speedup", "1", "--policy", "patience", *options]


@pytest.fixture
def folder(world, tmp_path):
    shutil.copytree(world / "model", tmp_path / "model")
    return tmp_path / "model"


def edit(file, *changes):
    """Change fields of a JSON file: each change is a dotted path and a value (`REMOVED`: remove the field)."""
    content = json.loads(file.read_text())
    for path, value in changes:
        keys = tuple(int(key) if key.isdigit() and path[0] != "i" else key for key in path.split("."))
        content = with_value(content, keys, value)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("exits.0.pooling", ["x"], "Unknown pooling"),
        ("exits.0.head", {}, "Unknown head"),
        ("exits.0.pooling", REMOVED, "`exits[0]` lacks `pooling`"),
        ("exits.1.head", REMOVED, "`exits[1]` lacks `head`"),
        ("exits", REMOVED, "lacks `exits`"),
        ("ramp", ["x"], "Unknown ramp"),
        ("problem_type", None, "lacks `problem_type`, the type of prediction"),
        ("id2label", REMOVED, "lacks `id2label`"),
        ("id2label", "no", "`id2label` must map class indices to labels, got 'no'"),
        ("id2label.1", 7, "got {'0': 'no', '1': 7"),
        ("model_type", REMOVED, '`model_type` must be "offramp", got None'),
        ("backbone.model_type", REMOVED, "`backbone.model_type` must be an encoder family, got None"),
        ("backbone.dtype", [1], "`backbone.dtype` must be a name such as float32, got [1]"),
        ("backbone.hidden_act", "x", "`backbone.hidden_act` must be an activation of transformers, got 'x'"),
        ("backbone.hidden_size", -1, "`backbone.hidden_size` must be between 1 and 10,000,000, got -1"),
        ("backbone.vocab_size", 10**9, "`backbone.vocab_size` must be between 1 and 10,000,000, got 1000000000"),
        (
            "backbone.num_hidden_layers",
            10**30,
            "`backbone.num_hidden_layers` must be between 0 and 10,000,000",
        ),
        ("backbone.layer_norm_eps", "x", "layer_norm_eps"),
        ("max_tokens", 41, "`max_tokens` must be at most 40 (the backbone's positions), got 41"),
        ("policy.patience", 10**400, "patience must be an integer between 1 and 1,000,000, got inf"),
        ("calibrated", {"guarantee": {}}, "`calibrated` lacks `sentence`"),
    ],
)
def test_errors_name_the_field_of_the_config(path, value, message, folder, capsys):
    edit(folder / "config.json", (path, value))
    line = fails(capsys, "info", folder)
    assert message in line and f"{folder}: config.json" in line


def test_a_corrupt_config_is_reported(folder, capsys):
    for content in ("null", "[]", "{}", "7", "", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"):
        (folder / "config.json").write_text(content)
        assert f"{folder}: config.json is truncated or corrupt" in fails(capsys, "info", folder)


def test_harmless_changes_are_accepted(folder, capsys, world):
    before = json_lines(capsys, "predict", folder, world / "data" / "texts.txt")
    harmless = [("backbone.of_tomorrow", 3), ("transformers_version", "9.9"), ("notes", "mine"), ("label2id", REMOVED)]
    edit(
        folder / "config.json", *harmless, ("exits.0.temperature", REMOVED), ("policy", "patience:1"), ("stranger", [])
    )
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    assert json_lines(capsys, "predict", folder, world / "data" / "texts.txt") == before
    assert main(["calibrate", str(folder), "--file", str(world / "data" / "dev.csv"), "--speedup", "1"]) == 0


def test_a_tokenizer_of_another_model_is_reported(folder, capsys, world):
    texts = world / "data" / "texts.txt"
    for length in ("x", -1, False):
        edit(folder / "tokenizer_config.json", ("model_max_length", length))
        assert f"tokenizer_config.json: `model_max_length` must be at least 1, got {length!r}" in fails(
            capsys, "predict", folder, texts
        )
    edit(folder / "tokenizer_config.json", ("model_max_length", 38))
    edit(folder / "tokenizer.json", ("model.vocab.film", 99))
    assert "produces tokens up to 99, but the backbone only has 40" in fails(capsys, "predict", folder, texts)
    edit(folder / "tokenizer.json", ("added_tokens.0.special", 3))
    assert "tokenizer.json or tokenizer_config.json" in fails(capsys, "predict", folder, texts)
    (folder / "tokenizer.json").write_text("{")
    assert f"{folder}: tokenizer.json is truncated" in fails(capsys, "predict", folder, texts)


def test_unreadable_row_hashes_are_reported(folder, capsys, world):
    file, arguments = folder / "rows.safetensors", calls(folder, world / "data", folder)["calibrate --file"]
    roles, original = load_file(file), file.read_bytes()
    for content in (b"", original[:-9], b"\xff" * 100):
        file.write_bytes(content)
        assert f"{file} is truncated or corrupt" in fails(capsys, *arguments)
    save_file({"logits": np.zeros(3)}, file)
    assert f"{file}: train is missing" in fails(capsys, *arguments)
    save_file(roles | {"dev": roles["dev"].astype(np.float64)}, file)
    assert f"{file}: dev is float64" in fails(capsys, *arguments)
    file.unlink()
    file.mkdir()
    assert f"Cannot read {file}" in fails(capsys, *arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe_options": "x"}, "`recipe_options` must be a mapping of names to values, got 'x'"),
        ({"seeds": [[1]]}, "`seeds` must be a list of whole numbers, got [[1]]"),
        ({"seed": 10**30}, "`seed` must be at most 4,294,967,295, got 1000"),
        ({"epochs": "three"}, "`epochs` must be a number, or a list with one number per stage, got 'three'"),
        ({"class_weights": {"a": 1}}, "`class_weights` must be 'balanced' or a list"),
        ({"warmup": float("inf")}, "`warmup` must be finite, got inf"),
        ({"max_steps": float("inf")}, "`max_steps` must be a whole number, got inf"),
        ({"backbone": None}, "`backbone` must be text, got None"),
        ({"strange": 1}, "Unknown option 'strange'"),
    ],
)
def test_errors_name_the_option_of_a_config_file(change, message, capsys, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"backbone": "nowhere/at-all", "output": str(tmp_path / "out")} | change))
    assert f"{file}: {message}" in fails(capsys, "train", "--config", file)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("policies.entropy.0.score", REMOVED, "policies.entropy[0] has no score"),
        ("policies.entropy.1", {}, "policies.entropy[1] has no score"),
        ("policies.entropy", [], "policies.entropy is empty"),
        ("policies", 3, "policies is 3"),
        ("static.0.mean_layers", float("nan"), "static[0].mean_layers is nan"),
        ("static.0.elue_flops", REMOVED, "static[0] has no elue_flops"),
        ("static.0.elue_flops", "x", "static[0].elue_flops is 'x'"),
        ("model.depth", "4", "model.depth is '4'"),
        ("model.parameters", True, "model.parameters is True"),
        ("model", [], "model is []"),
        ("data.metrics", [3], "data.metrics[0] is 3"),
        ("data.rows", -1, "data.rows is -1"),
    ],
)
def test_errors_name_the_field_of_results(path, value, message, world, capsys, tmp_path):
    run = shutil.copytree(world / "run", tmp_path / "run")
    edit(run / "results.json", (path, value))
    assert f"{run / 'results.json'} is not a valid results file ({message})" in fails(
        capsys, "compare", world / "run", run
    )


def test_a_changed_trace_is_reported(folder, world, capsys, tmp_path):
    original, file = world / "trace.safetensors", tmp_path / "trace.safetensors"
    arrays, metadata = load_file(original), header(original)["__metadata__"]
    about = json.loads(metadata["about"])
    changed = [
        ({"labels": arrays["labels"][::-1].copy()}, about, "its labels are not those of the data"),
        ({"logits": arrays["logits"] * np.float32("nan")}, about, "logits has NaN"),
        ({"spent": arrays["spent"].astype(np.int64)}, about, "spent has NaN"),
        ({"lengths": arrays["lengths"][1:]}, about, "lengths has shape (59,)"),
        ({}, with_value(about, ("model", "parameters"), None), "model.parameters in the header is None"),
        ({}, with_value(about, ("offramp",), REMOVED), "offramp in the header is None"),
        ({}, [], "model.name in the header is None"),
    ]
    for change, about_text, message in changed:
        save_file(arrays | change, file, metadata=metadata | {"about": json.dumps(about_text)})
        line = fails(capsys, *calibration(folder, world / "data", file))
        assert message in line and str(file) in line


def test_an_option_without_a_value_is_reported(capsys):
    for arguments in (["evaluate", "x", "--output=--"], ["train", "x", "--config=--"], ["evaluate", "x", "-o--"]):
        assert f"{arguments[-1].removesuffix('--').removesuffix('=')} needs a value" in fails(capsys, *arguments)


def test_random_changes_give_a_result_or_a_one_line_error(world, tmp_path):
    """A small sample; `python -m tests.tampering` runs many."""
    chance = random.Random(7)
    for number in range(18):
        root = tmp_path / str(number)
        model = shutil.copytree(world / "model", root / "model")
        trace = shutil.copy(world / "trace.safetensors", root / "trace.safetensors")
        run = shutil.copytree(world / "run", root / "run")
        if number % 3 == 0:
            change = tamper_trace(trace, chance)
            arguments = calibration(model, world / "data", trace)
        elif number % 3 == 1:
            change = tamper_json(run / "results.json", chance)
            arguments = ["compare", str(world / "run"), str(run), "--names", "a,b"]
        else:
            change = tamper_model(model, chance)
            commands = calls(model, world / "data", root / "out")
            arguments = commands[chance.choice(["info", "predict", "calibrate --file"])]
        before = snapshot(tmp_path)
        outcome = attempt(arguments)
        assert not outcome.faults((0, 1, 2)), change
        assert outcome.code == 0 or snapshot(tmp_path) == before, change
