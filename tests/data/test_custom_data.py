"""evaluate and calibrate read the same files as predict, with or without labels, from any folder."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from offramp import AdaptiveModel, load
from offramp.cli.main import main
from tests.calls import fails
from tests.reviews import rows
from tests.tiny import save_encoder

LABELLED = rows(260, seed=5)
EVALUATE = ["--no-live", "--policy", "entropy", "--thresholds", "0.5"]
FAST = ["--max-steps", "2", "--cpu", "--batch-size", "8", "--select", "none", "--recipe", "joint"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model that was trained on custom columns with relative paths."""
    home = tmp_path_factory.mktemp("home")
    save_encoder("bert", home / "encoder")
    lines = "".join(f"{['no', 'yes'][label]},{text}\n" for text, label in LABELLED)
    (home / "data").mkdir()
    (home / "data" / "reviews.csv").write_text("verdict,review\n" + lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        columns = ["--text-column", "review", "--label-column", "verdict"]
        files = ["--train-file", "data/reviews.csv", "--dev-file", "data/reviews.csv", "--max-length", "9"]
        call = ["train", "encoder", *files, *columns, *FAST, "--calibration-split", "0.4", "-o", "model"]
        assert main(call) == 0
    return home


@pytest.fixture
def model(home, tmp_path):
    return shutil.copytree(home / "model", tmp_path / "model")


def write_file(folder, variant):
    """Write the texts to a file: with labels under the names of the training, under the usual names, or without."""
    texts, labels = [text for text, _ in LABELLED], [["no", "yes"][label] for _, label in LABELLED]
    name, _, columns = variant.partition(" ")
    file = folder / name
    if name.endswith(".txt"):
        file.write_text("".join(f"{text}\n" for text in texts))
        return file
    text, label = {"own": ("review", "verdict"), "usual": ("text", "label"), "bare": ("text", None)}[columns]
    table = {text: texts} | ({label: labels} if label else {}) | {"id": list(range(len(texts)))}
    if name.endswith(".parquet"):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(table), file)
    elif name.endswith(".jsonl"):
        rows_ = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows_))
    else:
        mark = "\t" if name.endswith(".tsv") else ","
        cells = [list(table), *map(list, zip(*table.values(), strict=True))]
        file.write_text("".join(mark.join(map(str, row)) + "\n" for row in cells))
    return file


ENDINGS = ("csv", "tsv", "jsonl", "parquet")
VARIANTS = ["tickets.txt", *(f"t.{ending} {columns}" for ending in ENDINGS for columns in ("own", "bare"))]


@pytest.mark.parametrize("variant", [*VARIANTS, "t.csv usual"])
def test_a_file_of_any_kind_is_read_by_predict_evaluate_and_calibrate(variant, model, tmp_path, capsys):
    """`calibrate MODEL --file tickets.txt`, the example of its own help, ended with 2 on a model of own columns."""
    file = str(write_file(tmp_path, variant))
    columns = ["--text-column", "review"] if variant.endswith("own") else []
    assert main(["predict", str(model), file, *columns, "-o", str(tmp_path / "answers.jsonl")]) == 0
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == len(LABELLED)
    (model / "rows.safetensors").unlink()  # forget that these rows were trained on
    assert main(["evaluate", str(model), "--file", file, *EVALUATE, "-o", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["data"]["rows"] == len(LABELLED)
    assert bool(results["data"]["metrics"]) == variant.endswith(("own", "usual"))
    assert main(["calibrate", str(model), "--file", file, "--speedup", "1"]) == 0
    capsys.readouterr()


def test_a_format_may_be_named_and_a_header_missing(model, tmp_path, capsys):
    (tmp_path / "strange.data").write_text("".join(f"{i}\t{text}\n" for i, (text, _) in enumerate(LABELLED)))
    named = ["--input-format", "tsv", "--no-header", "--text-column", "2"]
    run = ["--file", str(tmp_path / "strange.data"), *named, *EVALUATE, "-o", str(tmp_path / "run")]
    assert main(["evaluate", str(model), *run]) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["data"]["rows"] == len(LABELLED)
    answers = tmp_path / "answers.jsonl"
    assert main(["predict", str(model), str(tmp_path / "strange.data"), *named, "-o", str(answers)]) == 0
    capsys.readouterr()


def test_it_works_from_another_folder_and_missing_data_raises(home, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "model", *EVALUATE, "-o", "run"]) == 0
    settings = yaml.safe_load((home / "model" / "training.yaml").read_text())
    assert settings["train_file"] == str(home / "data" / "reviews.csv") and settings["output"] == str(home / "model")
    capsys.readouterr()
    settings["dev_file"] = str(tmp_path / "gone.csv")
    (model / "training.yaml").write_text(yaml.safe_dump(settings))
    line = fails(capsys, "evaluate", "model", *EVALUATE, "-o", "other")
    assert f"model was trained on {tmp_path}/gone.csv, which no longer exists; pass the rows with" in line


def test_official_files_and_custom_tables_are_distinguished(trained, tmp_path, capsys):
    """A model for a known task reads official TSV files by position and other tables by column name."""
    official = tmp_path / "dev.tsv"
    official.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in LABELLED[:40]))
    own = tmp_path / "own.tsv"
    own.write_text("id\ttext\n" + "".join(f"{i}\t{text}\n" for i, (text, _) in enumerate(LABELLED[:40])))
    labelled = tmp_path / "own.csv"
    labelled.write_text("label,text\n" + "".join(f"{label},{text}\n" for text, label in LABELLED[:40]))
    for file, scored in ((official, True), (own, False), (labelled, True)):
        run = ["--file", str(file), *EVALUATE, "--overwrite", "-o", str(tmp_path / "run")]
        assert main(["evaluate", str(trained), *run]) == 0
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert bool(results["data"]["metrics"]) is scored
        assert len(results["examples"]["easiest"][0]["text"]) > 5
    capsys.readouterr()


def test_class_indices_of_a_dataset_are_mapped_by_name(model, tmp_path, capsys):
    """A file with class indices in another order than the model's was once scored wrongly."""
    import datasets

    names = ["yes", "no"]  # the model has no, yes
    features = datasets.Features({"review": datasets.Value("string"), "verdict": datasets.ClassLabel(names=names)})
    columns = {"review": [text for text, _ in LABELLED], "verdict": [1 - label for _, label in LABELLED]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "turned.parquet")
    files = {"turned": tmp_path / "turned.parquet", "plain": write_file(tmp_path, "t.csv own")}
    scores = []
    for name, file in files.items():
        assert main(["evaluate", str(model), "--file", str(file), *EVALUATE, "-o", str(tmp_path / name)]) == 0
        scores.append(
            [point["scores"] for point in json.loads((tmp_path / name / "results.json").read_text())["exits"]]
        )
    assert scores[0] == scores[1]
    capsys.readouterr()


def test_standard_input_and_a_trace_in_the_replaced_folder_raise(model, tmp_path, capsys):
    assert "pass a file instead of standard input" in fails(
        capsys, "evaluate", model, "--file", "-", "-o", tmp_path / "run"
    )
    file = write_file(tmp_path, "tickets.txt")
    run = ["--file", file, *EVALUATE, "-o", tmp_path / "run"]
    assert main([str(part) for part in ("evaluate", model, *run)]) == 0
    capsys.readouterr()
    trace = tmp_path / "run" / "trace.safetensors"
    line = fails(capsys, "evaluate", model, *run, "--overwrite", "--trace", trace)
    assert "is in the folder that would be replaced" in line and trace.is_file()


def test_only_files_of_an_evaluation_are_replaced(model, tmp_path, capsys):
    """A folder with a results.json was once deleted with all its files."""
    run = ["--file", write_file(tmp_path, "tickets.txt"), *EVALUATE, "--overwrite", "-o", tmp_path / "run"]
    assert main([str(part) for part in ("evaluate", model, *run)]) == 0
    assert main([str(part) for part in ("evaluate", model, *run)]) == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert "contains files that are not part of an evaluation (notes.txt)" in fails(capsys, "evaluate", model, *run)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


# -- the maximum length --------------------------------------------------------------------------


def test_the_maximum_length_of_training_is_used_for_prediction(home, tmp_path):
    """Prediction once truncated at the tokenizer's 38 tokens instead of training's 9."""
    runner, model = load(home / "model"), AdaptiveModel.from_pretrained(home / "model")
    assert model.config.max_tokens == runner.limit == 9
    long, cut = "good " * 7 + "bad " * 20, "good " * 7
    both = [[answer.score for answer in how.predict([long, cut])] for how in (runner, model)]
    assert both[0][0] == both[0][1] == both[1][0]
    other = load(home / "model", max_length=20)
    assert other.limit == 20 and len({answer.score for answer in other.predict([long, cut])}) == 2
    assert runner.fingerprint != other.fingerprint


def test_an_invalid_maximum_length_raises(home, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a film\n")
    for length in ("41", "0", "-3", "2"):  # below the number of special tokens, nothing would be truncated
        line = fails(capsys, "predict", home / "model", tmp_path / "a.txt", "--max-length", length)
        assert "must be between 4 (the special tokens and one more) and 40 tokens" in line


# -- the machine ---------------------------------------------------------------------------------


def test_device_dtype_and_threads_can_be_chosen(home, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a film\n")
    call = ["predict", home / "model", tmp_path / "a.txt"]
    assert main([*map(str, call), "--device", "cpu", "--dtype", "bfloat16", "--threads", "1"]) == 0
    capsys.readouterr()
    assert "torch finds no accelerator" in fails(capsys, *call, "--device", "cuda")
    assert "Unknown device 'toaster'" in fails(capsys, *call, "--device", "toaster")
    assert "--threads must be between 1 and 4,096, got 0" in fails(capsys, *call, "--threads", "0")
    runner = load(home / "model", dtype="bfloat16")
    assert (runner.backend, runner.dtype, runner.device.type) == ("torch", "bfloat16", "cpu")
    assert load(home / "model").dtype == "float32"
    assert main(["info", str(home / "model")]) == 0
    stdout = capsys.readouterr().out
    assert "this CPU" in stdout and "max length  9 tokens; longer texts are truncated" in stdout


def test_the_report_contains_the_command(home, tmp_path, capsys):
    """`main([...])` called from Python once recorded only `offramp`."""
    call = ["evaluate", str(home / "model"), *EVALUATE, "-o", str(tmp_path / "run")]
    assert main(call) == 0
    capsys.readouterr()
    assert json.loads((tmp_path / "run" / "results.json").read_text())["command"] == " ".join(["offramp", *call])
