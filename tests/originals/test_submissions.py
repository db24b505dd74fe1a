"""Submission files for GLUE and ELUE, from their official test files."""

from __future__ import annotations

import json

import pytest

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.data.tasks import TASKS
from offramp.originals.elue import flops_per_exit
from tests.calls import fails
from tests.tiny import LAYERS, adaptive

NAMES = {
    "cola": "CoLA.tsv",
    "sst-2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "qqp": "QQP.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
    "wnli": "WNLI.tsv",
    "sts-b": "STS-B.tsv",
    "ax": "AX.tsv",
}


def model_for(task_name, folder):
    task = TASKS[task_name]
    options = {"num_labels": task.num_labels, "problem_type": task.answer_type.name}
    if task.labels:
        options["labels"] = list(task.labels)
    adaptive("bert", folder / "encoder", **options).save_pretrained(folder / "model")
    return folder / "model"


def official_file(task, folder, rows=5, split=None):
    """An official test file: as many columns as the layout needs, a header, no labels."""
    layout = TASKS[task].splits[split or TASKS[task].test_splits[0]]
    width = max(layout.text, layout.pair or 0) + 1
    names = dict(zip([layout.text, layout.pair], TASKS[task].inputs, strict=False))
    lines = ["\t".join(names.get(i, f"column{i}") for i in range(width))]
    lines += ["\t".join(["good film" if i % 2 else "bad plot"] * width) for i in range(rows)]
    (folder / layout.file).write_text("\n".join(lines) + "\n")
    return folder / layout.file


def submits(*arguments):
    assert main([str(argument) for argument in ("predict", *arguments)]) == 0


@pytest.mark.parametrize("task", list(NAMES))
def test_glue(task, tmp_path, capsys):
    model, file = model_for(task, tmp_path), official_file(task, tmp_path)
    submits(model, file, "--format", "glue", "--task", task, "-o", tmp_path / "out")
    (written,) = (tmp_path / "out").iterdir()
    assert written.name == NAMES[task] and str(written) in capsys.readouterr().out
    head, *lines = written.read_bytes().decode().split("\n")
    assert head == "index\tprediction" and lines.pop() == ""
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "3", "4"]
    answers = {line.split("\t")[1] for line in lines}
    if task == "sts-b":
        assert all(len(answer.split(".")[1]) == 3 for answer in answers)
    else:
        assert answers <= set(TASKS[task].labels)


def test_mnli_has_two_test_sets(tmp_path, capsys):
    model = model_for("mnli", tmp_path)
    for split, name in (("test_matched", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")):
        file = official_file("mnli", tmp_path, split=split)
        submits(model, file, "--format", "glue", "--task", "mnli", "-o", tmp_path / "out")
        assert (tmp_path / "out" / name).is_file()
    other = file.rename(tmp_path / "mine.tsv")
    call = ["predict", model, other, "--format", "glue", "--task", "mnli", "-o", tmp_path / "out"]
    capsys.readouterr()
    assert "test_matched or test_mismatched" in fails(capsys, *call)
    submits(*call[1:], "--split", "test_matched", "--overwrite")


def test_submitted_labels_are_the_models_predictions(tmp_path):
    model, file = model_for("rte", tmp_path), official_file("rte", tmp_path)
    submits(model, file, "--format", "glue", "--task", "rte", "--policy", "layer:2", "-o", tmp_path / "out")
    lines = (tmp_path / "out" / "RTE.tsv").read_text().splitlines()[1:]
    pairs = [("good film", "good film") if i % 2 else ("bad plot", "bad plot") for i in range(5)]
    expected = [answer.label for answer in AdaptiveModel.from_pretrained(model).predict(pairs, policy="layer:2")]
    assert [line.split("\t")[1] for line in lines] == expected


def test_elue_static_and_dynamic(tmp_path):
    model, file = model_for("elue-sst-2", tmp_path), official_file("elue-sst-2", tmp_path)
    call = [model, file, "--format", "elue", "--task", "elue-sst-2", "-o", tmp_path / "out"]
    submits(*call)
    submits(*call, "--policy", "patience:2")
    submits(*call, "--policy", "entropy:0.69")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "sst-2.tsv",
        "sst-2.json",
        "sst-2_2.tsv",
        "sst-2_infer_exit_layer_2.tsv",
        "sst-2_2.json",
        "sst-2_0.69.tsv",
        "sst-2_infer_exit_layer_0.69.tsv",
        "sst-2_0.69.json",
    }
    assert (tmp_path / "out" / "sst-2_2.tsv").read_bytes().startswith(b"index\tprediction\r\n0\t")
    layers = (tmp_path / "out" / "sst-2_infer_exit_layer_2.tsv").read_text().split()[2:][1::2]
    assert all(1 <= int(layer) <= LAYERS for layer in layers) and len(layers) == 5
    loaded = AdaptiveModel.from_pretrained(model)
    costs = flops_per_exit(loaded.config)
    cost = json.loads((tmp_path / "out" / "sst-2_2.json").read_text())["sst-2_2.tsv"]
    assert cost["mflops"] == pytest.approx(sum(costs[int(layer) - 1] for layer in layers) / 5 / 1e6, abs=0.006)
    (tmp_path / "out" / "sst-2_2.tsv").unlink()
    layer_file = tmp_path / "out" / "sst-2_infer_exit_layer_2.tsv"
    before = layer_file.read_bytes()
    assert main([str(part) for part in ("predict", *call, "--policy", "patience:2")]) == 2  # all files or none
    assert layer_file.read_bytes() == before and not (tmp_path / "out" / "sst-2_2.tsv").exists()
    assert cost["mparams"] == round(sum(value.numel() for value in loaded.parameters()) / 1e6, 2)


def test_errors_are_one_line(tmp_path, capsys):
    model, file = model_for("sst-2", tmp_path), official_file("sst-2", tmp_path)
    out = ["-o", tmp_path / "out"]
    glue = ["predict", model, file, "--format", "glue"]
    assert "needs --task" in fails(capsys, *glue, *out)
    assert "needs --task and --output" in fails(capsys, *glue, "--task", "sst-2")
    assert "is not a GLUE task" in fails(capsys, *glue, "--task", "elue-sst-2", *out)
    other = official_file("mnli", tmp_path)
    call = ["predict", model, other, "--format", "glue", "--task", "mnli"]
    assert "predicts 0, 1 (single label classification), but the labels of the data are contradiction" in fails(
        capsys, *call, *out
    )
    assert "needs the path of the official file" in fails(
        capsys, "predict", model, "-", "--format", "glue", "--task", "sst-2", *out
    )
    nowhere = ["-o", tmp_path / "no" / "such"]
    assert "does not exist" in fails(capsys, *glue, "--task", "sst-2", *nowhere)
    assert "--task needs --format glue" in fails(capsys, "predict", model, file, "--task", "sst-2")
    file.write_text(file.read_text() + "6\n")
    assert "A submission needs every row" in fails(capsys, *glue, "--task", "sst-2", *out)
    assert not (tmp_path / "out").exists()


def test_the_model_or_file_of_another_task_is_an_error(tmp_path, capsys):
    from offramp.training.settings import Settings, write_settings

    model, file = model_for("sst-2", tmp_path), official_file("sst-2", tmp_path)
    call = ["predict", model, file, "--format", "glue", "--task", "sst-2", "-o", tmp_path / "out"]
    assert main([str(part) for part in call]) == 0
    assert f"{model} has no training task on record" in capsys.readouterr().err
    write_settings(Settings("encoder", str(model), task="elue-sst-2"), model)
    assert main([str(part) for part in [*call, "--overwrite"]]) == 0
    assert capsys.readouterr().err == ""
    write_settings(Settings("encoder", str(model), task="qqp"), model)
    assert f"{model} was trained for qqp, but this is a submission for sst-2" in fails(capsys, *call)
    write_settings(Settings("encoder", str(model), task="sst-2"), model)
    official_file("rte", tmp_path)  # a test.tsv of pairs
    line = fails(capsys, *call, "--overwrite")
    assert "has the columns column0, sentence1, sentence2; the test file of sst-2 has sentence in column 2" in line
    for option in (["--text-column", "sentence"], ["--input-format", "tsv"], ["--no-header"], ["--all-scores"]):
        assert f"remove {option[0]}" in fails(capsys, *call, *option)
