"""The short pages: every block runs as it stands there, every table says what the library does."""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import json
import multiprocessing
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

import offramp
from offramp.answers import RANKING, TOKEN
from offramp.calibration.risks import Guarantee
from offramp.cli.main import main
from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.training.recipes import RECIPES
from offramp.training.settings import Settings
from tests.pages import DOCS, blocks, codes, commands, known_options, option, read, sections, shortened, table
from tests.questions import write_squad
from tests.rankings import random_rankings, save_reranker, write_rankings
from tests.reviews import rows
from tests.tiny import LAYERS, adaptive, piece_tokenizer, save_encoder
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


# -- what the blocks name --------------------------------------------------------------------------


def write_rows(file: Path, count: int, seed: int, *, labelled: bool = True) -> None:
    """A CSV file with labels, or a text per line."""
    made = rows(count, seed)
    if not labelled:
        file.write_text("".join(f"{text}\n" for text, _ in made))
        return
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("text", "label"), *((text, ["bad", "good"][label]) for text, label in made)])


@pytest.fixture(scope="module")
def home(one_thread, tmp_path_factory) -> Path:
    """A folder with all that a page may find there: an encoder, files, and what the first page's commands make."""
    root = tmp_path_factory.mktemp("pages")
    save_encoder("bert", root / "bert-base-uncased")
    for seed, (name, count) in enumerate({"train": 1800, "dev": 60, "calibration": 130}.items()):
        write_rows(root / f"{name}.csv", count, seed)
    for seed, (name, count) in enumerate({"texts": 12, "part-1": 5, "part-2": 6, "fresh": 130, "served": 40}.items()):
        write_rows(root / f"{name}.txt", count, 10 + seed, labelled=False)
    write_rows(root / "reviews.csv", 400, 20)
    with (root / "reviews.csv").open("a") as out:
        out.write("good film,good\n" * 30 + "  good film ,good\nbad film,bad\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run_page("how-to/choose.md")
    shutil.copytree(root / "run", root / "other-run")
    return root


def evidence(place: Path) -> dict:
    return json.loads((place / "my-model" / "calibration.json").read_text())


@pytest.fixture
def place(home, tmp_path, monkeypatch) -> Path:
    """A copy to work in."""
    copy = tmp_path / "here"
    shutil.copytree(home, copy)
    monkeypatch.chdir(copy)
    return copy


def run_page(name: str, refusing: tuple[str, ...] = ()) -> None:
    """Run every block, in its order; some commands may end with an honest no."""
    for language, block in blocks(read(name)):
        if language == "python":
            exec(compile(block, name, "exec"), {"__name__": "page"})
            continue
        for command in commands(f"```{language}\n{block}```"):  # none in a language other than sh
            if "--output" in command:
                remove(Path(option(command, "--output")))  # another page's
            assert main(shortened(command)) in ((0, 1) if command[0] in refusing else (0,)), shlex.join(command)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


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


# -- policies --------------------------------------------------------------------------------------

KINDS = {
    "one label": {"num_labels": 3, "lte": True},
    "several": {"num_labels": 3, "lte": True, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "lte": True, "problem_type": "regression"},
    "ranking": {"num_labels": 1, "lte": True, "problem_type": "ranking"},
}
TEXTS = [text for text, _ in rows(40)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each kind, with exits that disagree."""
    root = tmp_path_factory.mktemp("kinds")
    return {kind: adaptive("bert", root / kind, **options) for kind, options in KINDS.items()}


def layers(model, policy: str) -> list[int]:
    if policy.startswith("risk:"):  # a judge, as calibrate fits one
        policy = f"{policy}:0,0,0:1,1,1"
    if policy.startswith("top-k:"):  # errors, as calibrate fits them
        policy = f"{policy}:1,1,1"
    if model.config.answer_type.multiple_rows:
        return [answer.exit_layer for answer in model.predict([(TEXTS[0], TEXTS[1:21])] * 2, policy=policy)]
    return [answer.exit_layer for answer in model.predict(TEXTS, policy=policy)]


def test_policies_runs(place):
    run_page("reference/policies.md")
    points = json.loads((place / "three-points" / "results.json").read_text())["policies"]["entropy"]
    assert [point["parameter"] for point in points] == [0.05, 0.1, 0.2]


def test_the_extremes_are_extreme(models):
    found = table(sections(read("reference/policies.md"))["Extreme values"], "policy")
    assert {codes(line[0])[0] for line in found} == set(POLICIES)
    for name, safest, boldest, where in found:
        kinds = ["regression"] if "regression" in name else ["ranking"] if "top-k" in name else ["one label"]
        if codes(name)[0] in ("entropy", "confidence", "margin", "learned", "layer", "patience-confidence"):
            kinds.append("several")
        for kind in kinds:
            assert set(layers(models[kind], codes(safest)[0])) == {LAYERS}, (kind, safest)
            if not codes(boldest):
                continue
            left = set(layers(models[kind], codes(boldest)[0]))
            assert min(left) == 2 if "earliest" in where else left == {int(where)}, (kind, boldest)


def test_the_table_says_what_each_policy_serves(models):
    found = table(sections(read("reference/policies.md"))["Parameters"], "policy")
    assert [codes(line[0])[0].split(":")[0] for line in found] == list(POLICIES)
    for line in found:
        kind_of = POLICIES[codes(line[0])[0].split(":")[0]]
        for kind, cell in zip(KINDS, line[4:], strict=True):
            policy = {"patience": "patience:2:0.1", "layer": "layer:2"}.get(kind_of.name, kind_of.example)
            if cell == "no":
                with pytest.raises(BadValue):
                    layers(models[kind], policy)
            else:
                layers(models[kind], policy)


def test_certain_is_not_never_in_float32(models):
    model = models["one label"]
    sure = offramp.answers.SINGLE_LABEL.confidence(torch.tensor([[17.5, 0.0], [10.0, 0.0]]))
    assert sure[0] == 1 and sure[1] < 1
    lists = ["entropy:1,1,1", "confidence:0,0,0", "margin:0,0,0", "learned:1,1,1,1", "patience-confidence:1:2,2,2"]
    assert all(set(layers(model, written)) <= {1, 2, 3, 4} for written in lists)
    for written in ("vote:1,2,3", "patience:1,2,3", "entropy:1,1"):
        with pytest.raises(BadValue):
            layers(model, written)


def test_a_budget_stops_at_the_deepest_exit_within_it(models):
    answers = models["one label"].predict(TEXTS, policy="never", max_layers=2)
    assert {answer.exit_layer for answer in answers} == {2}


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


# -- outputs ---------------------------------------------------------------------------------------


def named(part: str) -> set[str]:
    """The words in backticks, one by one."""
    return {word for code in codes(part) for word in re.findall(r"[\w.-]+", code)}


def keys(found: object, depth: int) -> set[str]:
    """The keys of an object and of what is in it, lists too."""
    if isinstance(found, list):
        return set().union(*(keys(one, depth) for one in found))
    if not isinstance(found, dict) or depth == 0:
        return set()
    return set(found).union(*(keys(one, depth - 1) for one in found.values()))


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


# -- machine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory) -> str:
    """A saved model with exits that disagree, and a policy."""
    place = tmp_path_factory.mktemp("machine") / "model"
    model = models["one label"]
    model.config.policy = {"name": "entropy", "threshold": 0.7}
    model.save_pretrained(place)
    return str(place)


MANY = [text for text, _ in rows(400)]


def told(runner, texts: list[str]) -> list[tuple[str, int, float]]:
    return [(answer.label, answer.exit_layer, round(answer.score, 4)) for answer in runner.predict(texts)]


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


def test_machine_runs(place, capsys):
    run_page("how-to/threads.md")
    printed = capsys.readouterr().out
    assert len((place / "answers-2.jsonl").read_text().splitlines()) == 6
    assert [len(part) for part in json.loads(printed.splitlines()[-1])] == [2, 1, 1, 1]


def test_one_runner_in_four_python_threads_answers_as_in_one(folder):
    whole = told(offramp.load(folder), MANY)
    assert len({layer for _, layer, _ in whole}) > 1
    runner = offramp.load(folder)
    starts = (0, 100, 200, 300)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: told(runner, MANY[start:] + MANY[:start]), starts))
    for start, answers in zip(starts, found, strict=True):
        assert answers == whole[start:] + whole[:start]


def test_another_number_of_torch_threads_gives_the_same_answers(folder):
    found = []
    for threads in (2, 1):
        found.append(told(offramp.load(folder, threads=threads), MANY[:100]))
        assert torch.get_num_threads() == threads  # of the whole process
    assert found[0] == found[1]


def answer_in_a_child(runner, texts: list[str], answers) -> None:
    torch.set_num_threads(1)  # threads of the parent's are not there after a fork
    answers.send(told(runner, texts))


def test_children_of_a_fork_after_load_answer_like_their_parent(folder):
    runner = offramp.load(folder)
    context = multiprocessing.get_context("fork")
    halves = [MANY[:200], MANY[200:]]
    pipes = [context.Pipe(duplex=False) for _ in halves]
    children = [
        context.Process(target=answer_in_a_child, args=(runner, half, sending), daemon=True)
        for half, (_, sending) in zip(halves, pipes, strict=True)
    ]
    for child in children:
        child.start()
    assert all(receiving.poll(60) for receiving, _ in pipes)
    found = [receiving.recv() for receiving, _ in pipes]
    for child in children:
        child.join(60)
    assert found[0] + found[1] == told(runner, MANY)


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
    subprocess.run([sys.executable, "-c", processes], check=True, timeout=300, cwd=place)  # starts workers
    told = capsys.readouterr().out
    assert "× less CPU time, measured" in told and "of the predictions are the same" in told
    assert "`risk` " in told


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
