"""The short pages: every block runs as it stands there, every table says what the library does."""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import json
import os
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import offramp
from offramp.answers import RANKING, TOKEN
from offramp.calibration.risks import Guarantee
from offramp.cli.main import main
from offramp.training.recipes import RECIPES
from tests import programs
from tests.docs.running import evidence, run_page, write_rows
from tests.pages import (
    DOCS,
    blocks,
    codes,
    commands,
    keys,
    known_options,
    named,
    read,
    sections,
    shortened,
    table,
)
from tests.questions import write_squad
from tests.rankings import random_rankings, save_reranker, write_rankings
from tests.reviews import rows
from tests.tiny import LAYERS, piece_tokenizer, save_encoder
from tests.training.test_tokens import plain_texts, tagged

PAGES = (
    "how-to/choose.md",
    "reference/policies.md",
    "how-to/prune.md",
    "how-to/split-data.md",
    "reference/input-files.md",
    "reference/output-files.md",
    "how-to/threads.md",
    "how-to/calibrate.md",
    "how-to/question-answering.md",
    "how-to/rerank.md",
    "how-to/export.md",
    "how-to/adapt.md",
    "how-to/python.md",
    "how-to/serve.md",
    "how-to/deploy.md",
    "how-to/batch-jobs.md",
    "how-to/train.md",
    "how-to/evaluate.md",
    "tutorials/your-classifier.md",
    "tutorials/reproduce-a-paper.md",
)
pytestmark = pytest.mark.usefixtures("one_thread")


# -- all pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_blocks_can_be_run_options_are_ours_and_links_lead_somewhere(name):
    text = read(name)
    assert {language for language, _ in blocks(text)} <= {"sh", "python", "console", "text", "json", "mermaid"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) <= known_options() | {"--nproc-per-node"}
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (DOCS / name).parent.joinpath(link).exists(), link
    for file in re.findall(r"tests/\w+\.py", text):
        assert (DOCS.parent / file).exists(), file


@pytest.mark.parametrize("name", ["how-to/serve.md", "how-to/deploy.md", "how-to/batch-jobs.md", "../README.md"])
def test_commands_that_are_run_elsewhere_are_spelled_right(name):
    """Servers and Ray jobs run in tests/serving and tests/cluster; here their options are parsed."""
    shell = [block for language, block in blocks(read(name)) if language == "sh" and block.startswith("offramp")]
    assert shell
    for command in commands("".join(f"```sh\n{block}```\n" for block in shell)):
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"offramp.cli.{command[0]}").add_arguments(parser)
        parser.parse_args(command[1:])


# -- choosing --------------------------------------------------------------------------------------


def test_choosing_has_run(home):
    told = json.loads((home / "my-model" / "scores.json").read_text())
    assert told["recipe"] == "joint" and told["layers"] == [1, 2, 3, 4]
    sentence = evidence(home)["sentence"]
    assert sentence.startswith("With 90 % confidence, at most 2 % of predictions differ from the full model's")
    assert evidence(home)["policy"].startswith("entropy:")
    assert len((home / "answers.jsonl").read_text().splitlines()) == 12


def test_the_table_of_rows_is_the_librarys():
    found = table(read("how-to/choose.md"), "risk")
    wanted = [(risk, confidence) for risk in (0.5, 1, 2, 3, 5) for confidence in (90, 95, 99)]
    assert [tuple(float(cell.strip("% ")) for cell in line[:2]) for line in found] == wanted
    for (risk, confidence), line in zip(wanted, found, strict=True):
        guarantee = Guarantee("disagreement", risk / 100, confidence / 100)
        for errors, cell in zip((0, 1, 2, 5, 10), line[2:], strict=True):
            count = int(cell.replace(",", ""))
            at, below = (guarantee.p_value((np.arange(n) < errors).astype(int)) for n in (count, count - 1))
            assert at <= guarantee.level < below, (risk, confidence, errors)


def first_table(title: str) -> list[list[str]]:
    text = sections(read("how-to/choose.md"))[title]
    return table(f"\n{text}", text.split("|")[1].strip())


def test_figures_of_choosing_stand_in_the_results():
    """Every number with a point that a reason quotes."""
    results = read("results/quality.md")
    reasons = [line[2] for title in ("Recipe", "Policy") for line in first_table(title)]
    quoted = [
        number for reason in reasons for number in re.findall(r"(?<![\w:.])\d+\.\d+", re.sub("`.*?`", "", reason))
    ]
    assert len(quoted) > 15
    assert all(re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", results) for number in quoted)


# -- splitting -------------------------------------------------------------------------------------


def read_csv(file: Path) -> list[tuple[str, str]]:
    with file.open(newline="") as opened:
        return [(row["text"].strip(), row["label"]) for row in csv.DictReader(opened)]


def test_splitting_runs_and_keeps_copies_together(place, capsys):
    run_page("how-to/split-data.md")
    printed = capsys.readouterr().out
    train, dev, both = (read_csv(place / f"{name}.csv") for name in ("train", "dev", "reviews"))
    assert sorted(train + dev) == sorted(both)
    assert {text for text, _ in train}.isdisjoint(text for text, _ in dev)
    different = dict(dev)
    assert sorted(different.values()) == ["bad"] * 20 + ["good"] * 20  # a tenth of each class
    assert printed.splitlines()[-1] == "0 of 40 dev texts were trained on"
    assert evidence(place)["test_rows"] == 130 and evidence(place)["origin"] == "that the model was not trained on"


def test_what_splitting_says_of_scikit_learn():
    from sklearn.model_selection import StratifiedGroupKFold

    texts = [text for text, _ in rows(100)] + ["good film"] * 20
    labels = [label for _, label in rows(100)] + [1] * 20
    train, dev = next(StratifiedGroupKFold(10, shuffle=True, random_state=0).split(texts, labels, texts))
    assert {texts[place] for place in train}.isdisjoint(texts[place] for place in dev)


# -- questions -------------------------------------------------------------------------------------


def test_questions_runs(place):
    for split, count in (("train", 40), ("dev", 10)):
        write_squad(place / "SQuAD" / f"{split}-v1.1.json", count, seed=len(split))
    (place / "questions.csv").write_text("question,context\nwas it good,it was a very long film\n")
    run_page("how-to/question-answering.md", refusing=("calibrate",))  # a tiny model may have nothing to guarantee
    assert json.loads((place / "answers.jsonl").read_text())["exit_layer"] <= LAYERS
    assert len(json.loads((place / "files" / "predictions_.json").read_text())) == 20


def test_reranking_runs(tmp_path, monkeypatch):
    """The page's commands and code, with a tiny reranker and a larger risk."""
    monkeypatch.chdir(tmp_path)
    save_reranker(tmp_path / "my-reranker")
    write_rankings(tmp_path / "rankings.jsonl", random_rankings(330, seed=1))
    write_rankings(tmp_path / "queries.jsonl", random_rankings(5, seed=2))
    text = read("how-to/rerank.md")
    adapting, predicting = commands(text)[:2]
    assert adapting[adapting.index("--risk") + 1] == "0.05"
    adapting[adapting.index("--risk") + 1] = "0.4"
    assert main([*adapting, "--epochs", "2", "--exits", "1,3"]) == 0
    assert main(predicting) == 0
    (code,) = [block for language, block in blocks(text) if language == "python"]
    exec(code, {})
    assert "`POST /rerank`" in text and {"/rerank", "/v1/rerank", "/v2/rerank", "/score"} == {
        endpoint.path for endpoint in RANKING.endpoints()
    }


def test_token_classification_runs(tmp_path, monkeypatch):
    """The page's commands and code, with tiny models and a larger risk."""
    monkeypatch.chdir(tmp_path)
    texts = plain_texts(400, seed=1)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    for name, seed in (("train", 1), ("dev", 2)):
        (tmp_path / f"{name}.conll").write_text(tagged(300 if name == "train" else 80, seed))
    save_encoder("bert", tmp_path / "my-encoder")
    piece_tokenizer().save_pretrained(tmp_path / "my-encoder")
    text = read("how-to/token-classification.md")
    adapting, predicting, training, evaluating, calibrating = commands(text)[:5]
    small = ["--epochs", "2", "--convolution", "4", "--learning-rate", "1e-2", "--exits", "auto"]
    training[training.index("--convolution") : training.index("--convolution") + 2] = small
    assert main(training) == 0 and main([*evaluating, "--no-live"]) == 0
    assert main([*calibrating, "--policy", "confidence"]) == 0
    shutil.copytree(tmp_path / "my-model", tmp_path / "my-tagger")
    adapting[adapting.index("0.02")] = "0.05"  # there are only 400 texts
    assert main([*adapting, "--epochs", "3", "--variations", "0"]) == 0
    assert main(predicting) == 0
    (code,) = [block for language, block in blocks(text) if language == "python"]
    exec(code, {})
    assert "`POST /`" in text and {endpoint.path for endpoint in TOKEN.endpoints()} == {"/"}


# -- training and evaluating -----------------------------------------------------------------------


def test_training_runs(place, glue):
    shutil.copytree(glue, "GLUE")
    shutil.copytree(place / "my-model", place / "my-classifier")
    run_page("how-to/train.md")
    assert json.loads((place / "with-exits" / "scores.json").read_text())["recipe"] == "deebert"
    assert {line[0].split()[0].strip("`") for line in table(read("how-to/train.md"), "recipe")} == set(RECIPES)


def test_evaluating_runs(place, glue):
    shutil.copytree(glue, "GLUE")
    train = ["train", "bert-base-uncased", "--task", "sst-2", "--data-dir", "GLUE"]
    assert main(shortened([*train, "--output", "sst2-model"])) == 0
    Path("GLUE", "SST-2", "test.tsv").write_text("index\tsentence\n0\ta lovely film\n1\ta dull one\n")
    run_page("how-to/evaluate.md")
    assert (place / "submission" / "SST-2.tsv").is_file()


def test_width_runs(place, glue, capsys):
    shutil.copytree(glue, "GLUE")
    train = ["train", "bert-base-uncased", "--task", "sst-2", "--data-dir", "GLUE", "--recipe", "plain"]
    assert main(shortened([*train, "--output", "my-plain-model"])) == 0
    run_page("how-to/prune.md")
    assert "of the layers' operations are kept (target 60.0 %)" in capsys.readouterr().out


def test_inputs_runs(place, capsys):
    lines = "".join(f"{number},a lovely film\n" for number in range(5))
    Path("reviews.csv").write_text("id,review\n" + lines)
    Path("reviews.csv.gz").write_bytes(gzip.compress(Path("reviews.csv").read_bytes()))
    run_page("reference/input-files.md")
    assert len(Path("answers.jsonl").read_text().splitlines()) == 5
    assert len(Path("answers.tsv").read_text().splitlines()) == 6


# -- calibrating again -----------------------------------------------------------------------------


def test_calibrating_again_runs(place, capsys):
    run_page("how-to/calibrate.md")
    printed = capsys.readouterr().out
    assert "--confidence 0.9667 needs at least 169 rows without a changed prediction" in printed
    assert evidence(place)["policy"].startswith("margin:")  # the model's own, from the line before
    assert evidence(place)["data"]["name"] == "fresh.txt"
    found = json.loads((place / "watch" / "results.json").read_text())
    assert 0 <= found["chosen"]["agreement_interval"][0] <= found["chosen"]["agreement"]


def test_the_very_same_calibration_changes_nothing(place):
    before = evidence(place)
    assert main(commands(read("how-to/choose.md"))[1]) == 0
    changed = {"date": None, "origin": None, "sentence": None}  # which say that these rows were tested before
    assert evidence(place) | changed == before | changed
    assert "also used in" in evidence(place)["origin"]


# -- runtimes --------------------------------------------------------------------------------------


def test_runtimes_runs(place):
    from offramp.exports.int8 import KINDS

    run_page("how-to/export.md", refusing=("calibrate", "tune"))
    assert (place / "my-model" / "onnx" / "model.onnx").is_file()
    measured = json.loads((place / "speed.json").read_text())
    names = {row["name"] for row in measured["rows"]}
    assert {"offramp, torch float32", "plain Hugging Face", "ONNX Runtime int8-static"} <= names
    parts = sections(read("reference/output-files.md"))
    assert keys(measured["rows"], 1) | set(measured) | set(measured["data"]) <= named(parts["benchmark"])
    told = json.loads((place / "my-model" / "onnx" / "offramp.json").read_text())
    assert set(told) | set(told["made"]) | set(told["checked"]) <= named(parts["Model folder"])
    assert all(row["throughput"] > 0 and 0 <= row["agreement"] <= 1 for row in measured["rows"])
    assert {codes(line[0])[0] for line in table(read("how-to/export.md"), "`--int8`")} == {*KINDS, "none"}


# -- adapting --------------------------------------------------------------------------------------


def test_adapting_runs(place):
    shutil.copytree(place / "my-model", place / "my-classifier")
    for seed, (name, count) in enumerate({"texts": 900, "more-texts": 60, "fresh-texts": 200}.items()):
        write_rows(place / f"{name}.txt", count, 30 + seed, labelled=False)
    run_page("how-to/adapt.md", refusing=("calibrate",))
    told = json.loads((place / "fast" / "calibration.json").read_text())
    assert "at most 2 % of predictions differ from my-classifier's" in told["sentence"]
    assert offramp.load(place / "faster", backend="onnx").config.calibrated is not None


def test_the_python_page_runs(place, capsys):
    """Every block, the first of which adapts, exports, calibrates, evaluates and predicts."""
    if not (place / "my-classifier").exists():
        shutil.copytree(place / "my-model", place / "my-classifier")
    write_rows(place / "texts.txt", 1000, 30, labelled=False)
    code = [block for language, block in blocks(read("how-to/python.md")) if language == "python"]
    assert len(code) == 4 and code[0].count("\n") <= 40
    *code, processes = code
    for block in code:
        exec(block, {})
    (place / "processes.py").write_text(processes)
    (done,) = programs.run((run_script, place / "processes.py"))  # starts workers
    assert done.code == 0 and "label" in done.stdout, done.stderr
    told = capsys.readouterr().out
    assert "× less CPU time, measured" in told and "of the predictions are the same" in told
    assert "`risk` " in told


def run_script(file: Path) -> int:
    """Run a script in its folder."""
    os.chdir(file.parent)
    runpy.run_path(str(file), run_name="__main__")
    return 0


# -- tutorials -------------------------------------------------------------------------------------


def test_the_tutorial_about_your_classifier_runs(place):
    shutil.copytree(place / "my-model", place / "my-classifier")
    for seed, (name, count) in enumerate({"texts": 900, "more-texts": 60}.items()):
        write_rows(place / f"{name}.txt", count, 30 + seed, labelled=False)
    run_page("tutorials/your-classifier.md")
    answers = [json.loads(line) for line in (place / "predictions.jsonl").read_text().splitlines()]
    assert len(answers) == 60 and set(answers[0]) == {"label", "score", "exit_layer"}
    assert (place / "fast-classifier" / "report.html").is_file()


def test_the_tutorial_about_a_paper_runs(place):
    from tests.docs.test_examples import write_mrpc

    write_mrpc(place / "GLUE")
    run_page("tutorials/reproduce-a-paper.md")
    runs = json.loads((place / "by-patience" / "comparison.json").read_text())["runs"]
    assert len(runs) == 3
