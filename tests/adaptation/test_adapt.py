"""`offramp adapt`: from a fine-tuned model and plain texts to a faster model with a guarantee."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

import offramp
from offramp import AdaptiveModel
from offramp.adaptation import exit_training
from offramp.adaptation import run as adapting
from offramp.cli.main import main
from offramp.policies import Never
from offramp.training.holdout import read_hashes
from tests import programs
from tests.calls import fails
from tests.tiny import WORDS, save_classifier, save_encoder, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

EASY = ["--risk", "0.2", "--confidence", "0.9", "--epochs", "12", "--variations", "0"]
# for tests whose outcome depends on the exits, but is not about them
PLAIN = ["--exits", "all", "--convolution", "0"]
ONE_EXIT = ["--exits", "3", "--convolution", "0"]


def random_texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(4 * count)]
    return list(dict.fromkeys(texts))[:count]


def write(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def classifier(family: str, folder: Path, num_labels: int, pairs: bool = False, **changes) -> Path:
    """A classifier as Hugging Face saves it, whose predictions are spread over its classes."""
    save_classifier(family, folder, num_labels=num_labels, **changes)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = random_texts(200, seed=1)
    batch = tokenizer()(texts, texts[::-1] if pairs else None, padding=True, return_tensors="pt")
    if family in ("roberta", "distilbert"):
        del batch["token_type_ids"]
    with torch.no_grad():
        last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
        last.bias -= model(**batch).logits.mean(0)
    model.save_pretrained(folder)
    return folder


def adapts(capsys, *arguments, code=0) -> str:
    assert main([str(argument) for argument in ("adapt", *arguments)]) == code, capsys.readouterr()
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A classifier as Hugging Face saves it."""
    return classifier("bert", tmp_path_factory.mktemp("models") / "original", 2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts") / "texts.txt", random_texts(700))


@pytest.fixture(scope="module")
def fast(original, texts, tmp_path_factory):
    """The original, adapted."""
    output = tmp_path_factory.mktemp("fast") / "fast"
    assert main(["adapt", str(original), str(texts), *EASY, "--output", str(output)]) == 0
    return output


def test_the_last_exit_is_the_original_bit_for_bit(original, fast):
    model = AutoModelForSequenceClassification.from_pretrained(original).eval()
    runner = offramp.load(fast)
    texts = random_texts(60, seed=9)
    answers = runner.answer(texts, policy="never", batch_tokens=1)
    for row, text in enumerate(texts):
        with torch.inference_mode():
            expected = model(**runner.tokenizer(text, return_tensors="pt")).logits[0]
        assert torch.allclose(torch.from_numpy(answers.logits[row]), expected, atol=1e-5)
    adapted, unchanged = load_file(fast / "model.safetensors"), load_file(original / "model.safetensors")
    keys = [key for key in unchanged if key.startswith("bert.") and "pooler" not in key]
    assert keys and all(torch.equal(unchanged[key], adapted["backbone" + key.removeprefix("bert")]) for key in keys)


def test_the_guarantee_its_card_and_its_report(original, fast):
    config = AdaptiveModel.from_pretrained(fast).config
    evidence = json.loads((fast / "calibration.json").read_text())
    assert config.calibrated["sentence"] == evidence["sentence"]
    sentence = evidence["sentence"]
    assert "at most 20 % of predictions differ from original's" in sentence and evidence["test_rows"] == 210
    assert evidence["model"]["name"] == str(fast) and evidence["guarantee"]["reference"] == "original"
    assert "it is not known whether original was trained on some of them" in sentence
    card = (fast / "README.md").read_text()
    assert sentence in card and "without labels" in card and "It is not known which texts" in card
    page = (fast / "report.html").read_text()
    assert '"different":[{' in page and '"expected":' in page and '"plain_name":"original, torch float32"' in page
    roles = {role: set(hashes.tolist()) for role, hashes in read_hashes(fast).items()}
    assert len(roles["train"]) == 350 and not roles["train"] & roles["calibration"] | roles["dev"] & roles["train"]
    assert all(spec.head == "attention" for spec in config.exit_specs[:-1]) and len(config.exit_specs) > 1
    assert sorted(path.name for path in fast.parent.iterdir()) == ["fast"]  # the work folder is removed


def test_the_same_run_gives_the_same_model(original, texts, tmp_path):
    """In this process and in a new one, because a seed must cover everything from the start."""
    options = ["--risk", "0.4", "--exits", "1,3", "--variations", "1", "--epochs", "6", "--policy", "risk"]
    commands = [["adapt", original, texts, *options, "--seed", "5", "--output", tmp_path / name] for name in "ab"]
    here, other = [[str(part) for part in command] for command in commands]
    assert main(here) == 0
    (done,) = programs.run((programs.offramp, other))
    assert done.code == 0, done.stderr
    first, second = (AdaptiveModel.from_pretrained(tmp_path / name).state_dict() for name in "ab")
    shared = first.keys() & second.keys()
    assert any("reader" in key for key in shared) and all(torch.equal(first[key], second[key]) for key in shared)


def test_a_shorter_maximum_length_is_reported(original, texts, tmp_path, capsys):
    out = adapts(
        capsys, original, texts, *EASY, *ONE_EXIT, "--exits", "1", "--max-length", "6", "--output", tmp_path / "fast"
    )
    assert "truncated to 6 tokens" in out


def test_training_rows_of_an_offramp_model_are_not_tested_on(fast, tmp_path, capsys, caplog):
    out = adapts(
        capsys, fast, write(tmp_path / "t.txt", random_texts(1200)), *EASY, *ONE_EXIT, "-o", tmp_path / "again"
    )
    assert "The model was trained on 490 of the texts" in caplog.text  # training and selection texts
    assert "it is not known whether fast was trained on some of them" in out  # as the original's training rows


def test_labels_of_a_table_of_pairs_are_ignored(tmp_path, capsys, caplog):
    model = classifier("roberta", tmp_path / "model", 3, pairs=True)
    texts = random_texts(900)
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["question", "answer", "label"])
        table.writerows([[*pair, "x"] for pair in zip(texts[:450], texts[450:], strict=True)])
    columns = ["--text-column", "question", "--pair-column", "answer"]
    options = [*EASY, *columns, "--risk", 0.4, "--class-risk", "none", "--output", tmp_path / "fast"]
    adapts(capsys, model, tmp_path / "pairs.csv", *options)
    assert "has labels, which are ignored" in caplog.text


def test_a_regression_within_a_tolerance(tmp_path, capsys):
    model = save_classifier("bert", tmp_path / "model", num_labels=1, problem_type="regression")
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in random_texts(600)))
    assert "--tolerance" in fails(capsys, "adapt", model, file, "--output", tmp_path / "fast")
    out = adapts(capsys, model, file, *EASY, "--tolerance", 2, "--risk", 0.3, "--output", tmp_path / "fast")
    assert "further than 2 from model's" in out
    assert AdaptiveModel.from_pretrained(tmp_path / "fast").config.exit_policy.name == "risk"


def test_several_labels(tmp_path, capsys):
    problem_type = "multi_label_classification"
    model = classifier("distilbert", tmp_path / "model", 3, problem_type=problem_type)
    file = write(tmp_path / "t.txt", random_texts(600))
    adapts(capsys, model, file, *EASY, "--risk", 0.6, "--output", tmp_path / "fast")
    assert AdaptiveModel.from_pretrained(tmp_path / "fast").config.answer_type.name == problem_type


def test_on_an_export_the_guarantee_is_the_exports(original, texts, tmp_path, capsys):
    out = adapts(capsys, original, texts, *EASY, "--backend", "onnx", "--int8", "static", "--output", tmp_path / "fast")
    runner = offramp.load(tmp_path / "fast", backend="onnx")
    calibrated = runner.config.calibrated
    assert calibrated["dtype"] == "int8-static" and calibrated["sentence"] in out
    assert "CPU time for 210 of the test texts, 1 thread" in out and "fast in ONNX Runtime int8-static, " in out
    assert "ordinary int8: original in ONNX Runtime int8-dynamic, " in out and out.count("Step 5 of 5: test") == 1
    assert "differ from original's" in calibrated["sentence"]
    evidence = json.loads((tmp_path / "fast" / "onnx" / "calibration.json").read_text())
    assert evidence["model"]["name"] == str(tmp_path / "fast")
    assert '"plain_name":"original, torch float32"' in (tmp_path / "fast" / "report.html").read_text()
    assert AdaptiveModel.from_pretrained(tmp_path / "fast").config.calibrated["backend"] == "torch"
    assert runner.answer(random_texts(20, 3)).layer.shape == (20,)


def test_an_interrupted_run_is_resumed(original, texts, tmp_path, capsys, monkeypatch):
    output = tmp_path / "fast"
    arguments = [original, texts, *EASY, *PLAIN, "--output", output]
    adapts(capsys, *arguments)
    arguments.append("--overwrite")
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "select_exits", lambda plan: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["adapt", *map(str, arguments)]) == 130
    assert (output / "report.html").is_file() and (tmp_path / ".fast.adapting" / "heads.safetensors").is_file()
    capsys.readouterr()
    fresh = tmp_path / ".other.adapting"  # as if a run without an output yet had been interrupted
    shutil.copytree(tmp_path / ".fast.adapting", fresh)
    error = fails_at_last(capsys, "adapt", *arguments[:-2], tmp_path / "other")
    assert "was interrupted" in error and (fresh / "heads.safetensors").is_file()
    shutil.rmtree(fresh)
    other = [*arguments, "--seed", "7", "--resume"]
    assert "a different model, texts or options" in fails_at_last(capsys, "adapt", *other)
    inverted = shutil.copytree(original, tmp_path / "inverted")
    weights = load_file(inverted / "model.safetensors")
    weights["classifier.weight"] = -weights["classifier.weight"]
    save_file(weights, inverted / "model.safetensors", metadata={"format": "pt"})
    assert "a different model, texts or options" in fails_at_last(capsys, "adapt", inverted, *arguments[1:], "--resume")
    shutil.rmtree(inverted)
    with monkeypatch.context() as patch:
        patch.setattr(exit_training, "record_states", None)  # neither runs again
        patch.setattr(exit_training, "imitate", None)
        adapts(capsys, *arguments, "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["fast"]
    assert "There is nothing to resume" in fails_at_last(capsys, "adapt", *arguments[:-2], tmp_path / "b", "--resume")


def fails_at_last(capsys, *arguments) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_without_a_guarantee_nothing_is_written_and_what_is_possible_is_named(
    backend, original, texts, tmp_path, capsys
):
    strict = ["--risk", "0.011", "--epochs", "0.01", "--backend", backend]
    out = adapts(capsys, original, texts, *strict, "--output", tmp_path / "fast", code=1)
    last = out.splitlines()[-1]
    assert last.startswith("No early exits satisfy the guarantee") and "on the 140 selection texts." in last
    possible = re.search(r"With a risk of (\d+) %: exits on layers [\d, ]+4: [\d.]+ ms per text", last)
    impossible = "No risk up to 20 % works: the early exits differ from the full model too often." in last
    assert impossible or int(possible[1]) > 1
    assert [*tmp_path.iterdir()] == []


def test_bad_input_is_one_line(original, texts, tmp_path, capsys):
    out = ["--output", tmp_path / "fast"]
    encoder = save_encoder("bert", tmp_path / "encoder")
    few = write(tmp_path / "few.txt", random_texts(50))
    alike = write(tmp_path / "alike.txt", ["a good film"] * 500)
    assert "no classification head" in fails(capsys, "adapt", encoder, texts, *out)
    assert "50 different texts are too few" in fails(capsys, "adapt", original, few, *out)
    assert "needs at least 380" in fails(capsys, "adapt", original, few, *out)
    assert "1 different texts are too few" in fails_at_last(capsys, "adapt", original, alike, *out)
    assert "File not found" in fails(capsys, "adapt", original, tmp_path / "nowhere.txt", *out)
    assert "already exists" in fails(capsys, "adapt", original, texts, "--output", encoder)
    assert "contains the model to adapt" in fails(capsys, "adapt", original, texts, "--output", original, "--overwrite")
    assert "Remove --int8" in fails(capsys, "adapt", original, texts, *out, "--int8", "token")
    assert "--risk must be between 0 and 1" in fails(capsys, "adapt", original, texts, *out, "--risk", "3")
    assert "--tolerance is for regression only" in fails(capsys, "adapt", original, texts, *out, "--tolerance", "1")
    assert "got 'patience'" in fails(capsys, "adapt", original, texts, *out, "--policy", "patience")
    assert "cannot be trained on a frozen model" in fails(capsys, "adapt", original, texts, *out, "--heads", "shared")
    assert "--exits contains no early exit" in fails(capsys, "adapt", original, texts, *out, "--exits", "4")
    assert {path.name for path in tmp_path.iterdir()} == {"encoder", "few.txt", "alike.txt"}


def test_constant_or_infinite_predictions_are_refused(original, texts, tmp_path, capsys):
    model = AutoModelForSequenceClassification.from_pretrained(original)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([1000.0, 0.0]))
    folder = tmp_path / "same"
    model.save_pretrained(folder)
    offramp.load(as_offramp_model(original, tmp_path / "o")).tokenizer.save_pretrained(folder)
    assert "predicts class 0 for all texts" in fails_at_last(capsys, "adapt", folder, texts, "-o", tmp_path / "x")
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    model.save_pretrained(folder)
    assert "is NaN or infinite" in fails_at_last(capsys, "adapt", folder, texts, "-o", tmp_path / "x")
    assert {path.name for path in tmp_path.iterdir()} == {"same", "o"}  # the work folder is removed


def as_offramp_model(original: Path, folder: Path) -> Path:
    AdaptiveModel.from_backbone(original).save_pretrained(folder)
    return folder


# -- another model's predictions -----------------------------------------------------------------


def test_the_guarantee_can_be_about_another_models_predictions(original, fast, tmp_path, capsys):
    """The last exit differs from the reference, and the guarantee about the reference holds all the same."""
    model = AdaptiveModel.from_pretrained(fast)
    first = model.runner().answer(random_texts(800, seed=5), policy=Never()).logits
    with torch.no_grad():  # so that one prediction in twenty changes
        ahead = np.sort(first[:, 1] - first[:, 0])
        model.exits.head(model.config.num_layers).classifier.bias[0] += float(ahead[ahead > 0][40])
    model.save_pretrained(tmp_path / "moved")
    rows = write(tmp_path / "rows.txt", random_texts(800, seed=5))
    arguments = ["calibrate", tmp_path / "moved", "--policy", "entropy", "--file", rows, "--risk", "0.3"]
    arguments += ["--reference", original]
    assert main([str(argument) for argument in arguments]) == 0
    evidence = json.loads((tmp_path / "moved" / "calibration.json").read_text())
    assert "differ from original's" in evidence["sentence"] and 0 < evidence["losses"] / evidence["rows"] <= 0.3
    reference = AdaptiveModel.from_backbone(original).runner().answer(random_texts(800, seed=5), policy=Never())
    moved = AdaptiveModel.from_pretrained(tmp_path / "moved")
    full = moved.runner().answer(random_texts(800, seed=5), policy=Never())
    early = moved.runner().answer(random_texts(800, seed=5), policy=evidence["policy"])
    expected = reference.logits.argmax(1)
    assert (full.logits.argmax(1) != expected).any()
    assert (early.logits.argmax(1) != expected).sum() == evidence["losses"]


def test_a_reference_in_a_file(fast, tmp_path, capsys):
    texts = random_texts(300, seed=5)
    table = "".join(f"{text}\tclass {number % 2}\n" for number, text in enumerate(texts))
    (tmp_path / "answers.tsv").write_text("text\tlabel\n" + table)
    rows = write(tmp_path / "rows.txt", texts)
    arguments = ["--file", rows, "--reference", tmp_path / "answers.tsv", "--no-live", "--output", tmp_path / "run"]
    assert main([str(argument) for argument in ("evaluate", fast, *arguments)]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0.3 < results["chosen"]["agreement"] < 0.7  # with arbitrary labels
    more = write(tmp_path / "more.txt", [*texts, "a very long film it was"])
    capsys.readouterr()
    error = fails_at_last(
        capsys, "evaluate", fast, "--file", more, "--reference", tmp_path / "answers.tsv", "-o", tmp_path / "y"
    )
    assert "no label for 1 of the 301 rows" in error
    other = save_classifier("bert", tmp_path / "other", num_labels=3)
    error = fails_at_last(capsys, "evaluate", fast, "--file", rows, "--reference", other, "-o", tmp_path / "y")
    assert "predicts class 0, class 1, class 2" in error


# -- the recipe alone ----------------------------------------------------------------------------


def test_the_recipe_imitate_without_and_with_labels(original, tmp_path, capsys):
    train, dev = (write(tmp_path / f"{name}.txt", random_texts(200, seed)) for name, seed in (("train", 1), ("dev", 2)))
    arguments = ["train", original, "--recipe", "imitate", "--epochs", "6", "--output", tmp_path / "model"]
    files = ["--train-file", train, "--dev-file", dev]
    assert main([str(argument) for argument in (*arguments, *files)]) == 0
    out = capsys.readouterr().out
    assert "agreement" in out and "100.0" in out  # the last exit is the teacher
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert [spec.head for spec in model.config.exit_specs] == ["attention"] * 3 + ["family"]
    assert model.exits.untrained_layers() == ()
    answers = (
        AdaptiveModel.from_backbone(original).runner().answer(random_texts(200, 1), policy="never").logits.argmax(1)
    )
    table = "".join(f"{text}\tclass {1 - answer}\n" for text, answer in zip(random_texts(200, 1), answers, strict=True))
    (tmp_path / "wrong.tsv").write_text("text\tlabel\n" + table)
    wrong = ["--train-file", tmp_path / "wrong.tsv", "--dev-file", tmp_path / "wrong.tsv", "--label-weight", "1"]
    arguments[-1] = tmp_path / "hard"
    assert main([str(argument) for argument in (*arguments, *wrong, "--calibration-split", "0")]) == 0
    scores = json.loads((tmp_path / "hard" / "scores.json").read_text())["dev"]["dev"]
    assert scores[-1]["acc"] == 0 and scores[-2]["acc"] > 0.5  # trained on the labels alone, which are all inverted
    capsys.readouterr()
    other = save_classifier("bert", tmp_path / "other", num_labels=3)
    error = fails_at_last(capsys, *arguments[:-1], tmp_path / "x", *wrong, "--teacher", other)
    assert "predicts class 0, class 1, class 2" in error
    encoder = save_encoder("bert", tmp_path / "encoder")
    error = fails_at_last(capsys, "train", encoder, *arguments[2:-1], tmp_path / "y", *wrong)
    assert "no classification head" in error
