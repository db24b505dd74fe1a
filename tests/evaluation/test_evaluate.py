"""`offramp evaluate`: files, tables, and results that agree with the model."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.evaluation.intervals import bootstrap, bootstrap_mean, exact_proportion
from offramp.evaluation.points import Scorer
from offramp.evaluation.traces.operations import count_operations
from offramp.evaluation.traces.reading import read_trace
from offramp.model import guarantee
from offramp.policies import parse
from tests.calls import fails
from tests.reviews import rows, write_sts
from tests.tiny import LAYERS, adaptive, tokenizer

FILES = {
    "results.json",
    "curve.csv",
    "each_layer.npy",
    "entropy.npy",
    "layer.npy",
    "oracle.npy",
    "curve.png",
    "curve.svg",
    "exits.png",
    "exits.svg",
    "report.html",
    "trace.safetensors",
}
COLUMNS = [
    "policy",
    "parameter",
    "score",
    "agreement",
    "mean_layers",
    "cost",
    "speedup",
    "flops",
    "elue_flops",
    "seconds",
]


def evaluates(capsys, *arguments) -> str:
    """The output of a successful call."""
    assert main([str(argument) for argument in ("evaluate", *arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """One evaluation, live points and all, on the dev rows of the training."""
    folder = tmp_path_factory.mktemp("run") / "out"
    assert main(["evaluate", str(trained), "--output", str(folder)]) == 0
    return folder


# -- files and results ---------------------------------------------------------------------------


def test_all_files_are_written(run):
    assert {path.name for path in run.iterdir()} >= FILES
    with (run / "curve.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == COLUMNS
    results = results_of(run)
    assert {row["policy"] for row in table} == {*results["policies"], "layer", "oracle"}
    for name, points in results["policies"].items():
        array = np.load(run / f"{name}.npy", allow_pickle=False)
        assert array.shape == (len(points), len(COLUMNS) - 1)
        assert np.allclose(array[:, 1], [point["score"] for point in points])
    assert np.load(run / "each_layer.npy", allow_pickle=False).tolist() == [
        exit_["scores"]["acc"] for exit_ in results["exits"]
    ]


def test_only_timed_points_have_seconds(run):
    results = results_of(run)
    live = {point["policy"] for point in results["live"]}
    assert results["chosen"]["policy"] in live and results["plain_seconds"] > 0
    for point in (point for points in results["policies"].values() for point in points):
        assert (point["seconds"] is not None) is (point["policy"] in live)
    for point in results["live"]:
        assert point["measured_speedup"] == pytest.approx(results["plain_seconds"] / point["seconds"])


def test_scores_and_layers_are_those_of_the_model_itself(run, trained, reviews):
    results = results_of(run)
    model = AdaptiveModel.from_pretrained(trained)
    lines = (reviews / "SST-2" / "dev.tsv").read_text().splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    full = [answer.label for answer in model.predict(texts, policy="never")]
    for exit_ in results["exits"]:
        answers = [answer.label for answer in model.predict(texts, policy=f"layer:{exit_['layer']}")]
        assert exit_["scores"]["acc"] == pytest.approx(accuracy_score(labels, answers))
        assert exit_["agreement"] == pytest.approx(accuracy_score(full, answers))
    chosen = results["chosen"]
    answers = list(model.predict(texts, policy=chosen["policy"]))
    layers = np.array([answer.exit_layer for answer in answers])
    assert chosen["score"] == pytest.approx(accuracy_score(labels, [answer.label for answer in answers]))
    assert chosen["mean_layers"] == pytest.approx(layers.mean())
    assert chosen["speedup"] == pytest.approx(LAYERS / layers.mean()) and chosen["cost"] * LAYERS == pytest.approx(
        layers.mean()
    )
    assert chosen["exits"] == [int((layers == layer).sum()) for layer in range(1, LAYERS + 1)]
    lengths = np.array([len(model.tokenizer(text)["input_ids"]) for text in texts])
    spent, heads = count_operations(model.config).at(lengths)
    assert chosen["flops"] == pytest.approx(spent[np.arange(len(texts)), layers - 1].mean())
    alone = (spent[:, -1] - heads[:, :-1].sum(1)).mean()
    assert results["exits"][-1]["flops"] == pytest.approx(alone)


def test_a_faithful_model_with_its_ramp(capsys, tmp_path):
    """A converted DeeBERT has two exits on its last layer; the never-trained one may answer."""
    case = Path(__file__).parents[1] / "golden" / "deebert-bert-2" / "checkpoint"
    assert main(["convert", str(case), "--faithful", "--output", str(tmp_path / "model")]) == 0
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "own.csv").write_text("text,label\n" + "".join(f"{text},LABEL_{y}\n" for text, y in rows(40)))
    capsys.readouterr()
    evaluates(capsys, tmp_path / "model", "--file", tmp_path / "own.csv", "-o", tmp_path / "out")
    results = results_of(tmp_path / "out")
    layers = [exit_["layer"] for exit_ in results["exits"]]
    assert layers[-1] == layers[-2] and results["chosen"]["elue_flops"] is None
    last = max(results["static"], key=lambda point: point["mean_layers"])  # the classifier, not the ramp beside it
    assert last["agreement"] == 1 and last["scores"] == results["exits"][-1]["scores"]
    call = ["calibrate", tmp_path / "model", "--file", tmp_path / "own.csv", "--temperature", "--risk", "0.3"]
    assert main([str(part) for part in call]) == 2
    assert "remove --temperature" in capsys.readouterr().err


def test_a_guarantee_is_reported_only_with_its_own_policy(trained, capsys, tmp_path):
    model = AdaptiveModel.from_pretrained(trained)
    model.config.policy = parse("entropy:0.45").to_dict()
    evidence = {"guarantee": {"risk": 0.1}, "sentence": "kept", "machine": {"backend": "torch", "dtype": "float32"}}
    guarantee.bind(model.config, parse("entropy:0.45"), evidence, model.runner().fingerprint)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("good film\nbad plot\n")
    for options, expected in (([], True), (["--policy", "entropy:0.2"], False)):
        data = ["--file", tmp_path / "texts.txt", "--no-live", "--overwrite", "-o", tmp_path / "out"]
        evaluates(capsys, tmp_path / "model", *data, *options)
        assert (results_of(tmp_path / "out")["calibration"] is not None) is expected


def test_the_oracle_takes_the_first_correct_exit(run):
    results, trace = results_of(run), read_trace(run / "trace.safetensors")
    right = trace.logits.argmax(-1) == trace.labels[:, None]
    for k, point in enumerate(results["oracle"], 1):
        first = np.where(right[:, :k].any(1), right[:, :k].argmax(1), 0)
        assert point["score"] == pytest.approx(right[np.arange(len(trace)), first].mean())
        assert point["mean_layers"] == pytest.approx((first + 1).mean())
    best = max(point["score"] for points in results["policies"].values() for point in points)
    assert results["oracle"][-1]["score"] >= best


def test_intervals_contain_the_value_and_narrow_with_rows(run):
    results = results_of(run)
    for exit_ in results["exits"]:
        low, high = exit_["interval"]
        assert low <= exit_["scores"]["acc"] <= high
    low, high = results["chosen"]["agreement_interval"]
    assert low <= results["chosen"]["agreement"] <= high and low < high
    assert (
        results["chosen"]["difference_interval"][0]
        <= results["chosen"]["difference"]
        <= results["chosen"]["difference_interval"][1]
    )
    for count, total in ((0, 1), (1, 1), (0, 50), (3, 50), (100, 100), (9_990, 10_000)):
        assert exact_proportion(count, total) == pytest.approx(binomtest(count, total).proportion_ci(0.95), abs=1e-9)
    few, many = (np.arange(count) % 4 == 0 for count in (100, 10_000))
    assert np.ptp(bootstrap_mean(few)) > 5 * np.ptp(bootstrap_mean(many))
    low, high = bootstrap(lambda p, y: f1_score(y, p), few, np.roll(few, 1) | few)
    assert low < f1_score(np.roll(few, 1) | few, few) < high


def test_bootstrap_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        low, high = bootstrap_mean(rng.random(300) < 0.8, seed)
        hits += low <= 0.8 <= high
    assert 0.90 <= hits / 200 <= 0.99


# -- options ------------------------------------------------------------------------------------


def test_a_trace_is_read_instead_of_a_pass(run, trained, capsys, tmp_path):
    """The results of a modified trace show that the model did not run again."""
    arrays, file = load_file(run / "trace.safetensors"), tmp_path / "t.safetensors"
    arrays["logits"][:, -1] *= -1
    with safe_open(run / "trace.safetensors", "np") as opened:
        save_file(arrays, file, opened.metadata())
    evaluates(capsys, trained, "--trace", file, "--no-live", "-o", tmp_path / "out")
    before, after = results_of(run)["exits"], results_of(tmp_path / "out")["exits"]
    assert after[-1]["scores"]["acc"] == pytest.approx(1 - before[-1]["scores"]["acc"])
    assert [exit_["scores"] for exit_ in after[:-1]] == [exit_["scores"] for exit_ in before[:-1]]
    assert not (tmp_path / "out" / "trace.safetensors").exists()


def test_policies_thresholds_and_patience(trained, run, capsys, tmp_path):
    options = ["--policy", "entropy", "--policy", "patience:2", "--thresholds", "0.3,0.1", "--patience", "3,1"]
    trace = ["--trace", run / "trace.safetensors", "--no-live"]
    printed = evaluates(capsys, trained, *options, *trace, "-o", tmp_path / "out")
    results = results_of(tmp_path / "out")
    assert [point["policy"] for point in results["policies"]["entropy"]] == ["entropy:0.1", "entropy:0.3"]
    assert [point["policy"] for point in results["policies"]["patience"]] == ["patience:3", "patience:1"]
    assert results["chosen"]["policy"] == "patience:2" and not results["picked_here"]
    assert "patience 2:" in printed and "exit layer" in printed and "seconds" not in printed


def test_the_models_own_policy_is_the_chosen_one(trained, run, capsys, tmp_path):
    model = AdaptiveModel.from_pretrained(trained)
    model.config.policy = parse("entropy:0.45").to_dict()
    model.save_pretrained(tmp_path / "model")
    own = ["--task", "sst-2", "--file", run.parent / "dev.tsv"]
    (run.parent / "dev.tsv").write_text("sentence\tlabel\ngood film\t1\nbad plot\t0\n")
    evaluates(capsys, tmp_path / "model", *own, "--no-live", "-o", tmp_path / "out")
    results = results_of(tmp_path / "out")
    assert results["chosen"]["policy"] == "entropy:0.45" and results["data"]["rows"] == 2


def test_every_checkpoint_of_a_run(trained, capsys, tmp_path):
    printed = evaluates(capsys, trained, "--all-checkpoints", "--no-live", "-o", tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["1-joint-45", "1-joint-90"] and all(name in printed for name in names)
    last = results_of(tmp_path / "out" / "1-joint-90")
    assert last["exits"][-1]["scores"]["acc"] > 0.6


def test_texts_without_labels_are_compared_with_the_full_model(trained, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(60, 9)))
    printed = evaluates(capsys, trained, "--file", tmp_path / "texts.txt", "--no-live", "-o", tmp_path / "out")
    results = results_of(tmp_path / "out")
    assert results["data"]["metrics"] == [] and results["oracle"] is None and results["chosen"]["score"] is None
    assert results["exits"][-1]["agreement"] == 1 and "same as full" in printed
    assert (
        "same prediction" in (tmp_path / "out" / "curve.svg").read_text()
        or (tmp_path / "out" / "curve.svg").stat().st_size
    )


def test_a_regression(tmp_path, capsys):
    data = write_sts(tmp_path / "data", dev=40)
    adaptive("bert", tmp_path / "encoder", num_labels=1, problem_type="regression").save_pretrained(tmp_path / "model")
    evaluates(
        capsys, tmp_path / "model", "--task", "elue-sts-b", "--data-dir", data, "--no-live", "-o", tmp_path / "out"
    )
    results = results_of(tmp_path / "out")
    assert list(results["policies"]) == ["patience"] and results["data"]["metrics"] == ["corr", "pearson", "spearmanr"]
    assert results["tolerance"] > 0 and results["policies"]["patience"][0]["policy"] == "patience:1:0.001"
    assert math.isfinite(results["chosen"]["difference_interval"][0])
    assert results["oracle"][-1]["score"] >= results["exits"][-1]["scores"]["corr"]


def test_your_own_multi_label_data(tmp_path, capsys):
    options = {"problem_type": "multi_label_classification", "labels": ["red", "green", "blue"], "num_labels": 3}
    adaptive("bert", tmp_path / "encoder", **options).save_pretrained(tmp_path / "model")
    lines = [{"text": text, "label": ["red", "blue"][: 1 + label]} for text, label in rows(40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluates(capsys, tmp_path / "model", "--file", tmp_path / "own.jsonl", "--no-live", "-o", tmp_path / "out")
    results = results_of(tmp_path / "out")
    assert results["data"]["metrics"] == ["f1_micro", "f1_macro"] and "vote" not in results["policies"]


def test_labels_in_another_order_are_scored_in_the_models(tmp_path, capsys):
    """A model whose classes are named the other way round scores the same."""
    scores = []
    for labels in (["0", "1"], ["1", "0"]):
        model = adaptive("bert", tmp_path / "encoder", num_labels=2, labels=labels)
        if labels[0] == "1":
            for layer in range(1, LAYERS + 1):
                head = model.exits.head(layer).classifier
                head.weight.data, head.bias.data = head.weight.data.flip(0), head.bias.data.flip(0)
        model.save_pretrained(tmp_path / "model")
        (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in rows(50)))
        options = [
            "--task",
            "sst-2",
            "--file",
            tmp_path / "dev.tsv",
            "--no-live",
            "--overwrite",
            "-o",
            tmp_path / "out",
        ]
        evaluates(capsys, tmp_path / "model", *options)
        scores.append([exit_["scores"]["acc"] for exit_ in results_of(tmp_path / "out")["exits"]])
    assert scores[0] == scores[1]


# -- mistakes ------------------------------------------------------------------------------------


def test_mistakes_are_one_line_and_overwrite_nothing(trained, run, reviews, tmp_path, capsys):
    before = (run / "results.json").read_bytes()
    other = adaptive("bert", tmp_path / "encoder", num_labels=3, labels=["a", "b", "c"])
    other.save_pretrained(tmp_path / "other")
    sst = ["--task", "sst-2", "--data-dir", reviews]
    cases = [
        (["evaluate", trained, "-o", run], "already exists"),
        (["evaluate", trained, "--policy", "entropyy", "-o", run, "--overwrite"], "Did you mean 'entropy'"),
        (["evaluate", trained, "--policy", "never", "-o", run, "--overwrite"], "no number to choose"),
        (
            ["evaluate", trained, "--policy", "entropy:1", "--policy", "vote:2", "-o", run, "--overwrite"],
            "Only one policy",
        ),
        (["evaluate", tmp_path / "other", *sst, "-o", run, "--overwrite"], "predicts a, b, c"),
        (["evaluate", tmp_path / "other", "-o", run, "--overwrite"], "No data: pass"),
        (["evaluate", trained, "--task", "ax", "-o", run, "--overwrite"], "no labelled dev rows"),
        (["evaluate", trained, "--file", tmp_path / "none.tsv", "-o", run, "--overwrite"], "File not found"),
        (["evaluate", trained, "--policy", "learned", "-o", run, "--overwrite"], "LTE"),
        (["evaluate", trained, "--metric", "f1", "-o", run, "--overwrite"], "has fixed columns"),
        (["evaluate", trained, "--thresholds", "0.1", "-o", run, "--overwrite"], "choose it with --policy"),
        (
            ["evaluate", trained, "--policy", "vote", "--patience", "3", "-o", run, "--overwrite"],
            "needs the policy patience",
        ),
        (["evaluate", trained, "--tolerance", "3", "-o", run, "--overwrite"], "for regression only"),
        (["evaluate", trained, "--elue-length", "0", "-o", run, "--overwrite"], "from 1 to 1,000,000"),
    ]
    for arguments, message in cases:
        assert message in fails(capsys, *arguments), arguments
    assert (run / "results.json").read_bytes() == before
    trace = ["--trace", run / "trace.safetensors", "-o", tmp_path / "out"]
    two = adaptive("bert", tmp_path / "encoder", num_labels=2, labels=["0", "1"])
    two.save_pretrained(tmp_path / "two")
    line = fails(capsys, "evaluate", tmp_path / "two", *sst, *trace, "--max-length", "16")
    assert "a trace of another model" in line
    assert not (tmp_path / "out").exists()


def test_scores_need_labels(run):
    trace = read_trace(run / "trace.safetensors")
    with pytest.raises(ValueError, match="no labels"):
        Scorer(replace(trace, labels=None), ("acc",))


def test_the_policy_of_the_recipe_comes_first(encoders, glue, tmp_path, capsys):
    model = tmp_path / "model"
    options = ["--recipe", "pabee", "--task", "sst-2", "--data-dir", glue, "--epochs", "1", "--max-length", "16"]
    assert main([str(part) for part in ("train", encoders["bert"], *options, "--output", model)]) == 0
    assert "pabee 1.00" in capsys.readouterr().err  # the name of its stage, in the table of dev scores
    assert main(["evaluate", str(model), "--no-live", "--output", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert next(iter(results["policies"])) == "patience" and results["chosen"]["policy"].startswith("patience:")
    assert capsys.readouterr().out.count("patience") > 0
