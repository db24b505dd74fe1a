"""`offramp calibrate`: the rows, the written files and the errors; the statistics are tested in test_guarantees."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from offramp import AdaptiveModel
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.sequence import pareto, run_sequence
from offramp.calibration.temperature import fit_temperatures
from offramp.cli.main import main
from offramp.evaluation.traces.recording import record
from offramp.policies import parse
from offramp.policies.grids import grid
from offramp.training.holdout import read_hashes
from tests.calls import fails
from tests.reviews import rows, write_sts
from tests.tiny import LAYERS, adaptive


@pytest.fixture
def model(trained, tmp_path):
    """A copy to write into."""
    copy = tmp_path / "model"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints"))
    return copy


def calibrates(capsys, *arguments, code=0) -> str:
    assert main([str(argument) for argument in ("calibrate", *arguments)]) == code, capsys.readouterr()
    return capsys.readouterr().out


def evidence(model):
    return json.loads((model / "calibration.json").read_text())


EASY = ["--risk", "0.05", "--confidence", "0.9"]


# -- a guarantee -----------------------------------------------------------------------------------


def test_the_choice_its_evidence_and_one_sentence_on_the_card(model, capsys):
    printed = calibrates(capsys, model, *EASY)
    saved = evidence(model)
    policy = AdaptiveModel.from_pretrained(model).config.exit_policy
    assert str(policy) == saved["policy"] and policy.name == "entropy"
    assert saved["test_rows"] == 480 == saved["data"]["rows"]  # 40 % of 1,200 were set aside
    assert saved["guarantee"] | {"risk_type": "disagreement", "risk": 0.05, "test": "binomial"} == saved["guarantee"]
    assert saved["p_value"] <= 0.1 and saved["losses"] <= 24 and saved["machine"]["dtype"] == "float32"
    assert saved["tested"][-1]["p_value"] > 0.1 or saved["tested"][-1]["policy"] == saved["policy"]
    sentence = "With 90 % confidence, at most 5 % of predictions differ from the full model's"
    assert sentence in printed and sentence in (model / "README.md").read_text()
    assert "## Training" in (model / "README.md").read_text()


def test_the_guarantee_holds_on_the_rows_it_was_tested_on(model, reviews, capsys):
    calibrates(capsys, model, *EASY, "--risk-type", "accuracy")
    loaded = AdaptiveModel.from_pretrained(model)
    held = set(read_hashes(model)["calibration"].tolist())
    from offramp.data.hashes import hash_text

    lines = [line.split("\t") for line in (reviews / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    held_out = [(text, label) for text, label in lines if hash_text(text) in held]
    assert len(held_out) == evidence(model)["test_rows"]
    texts, labels = zip(*held_out, strict=True)
    early, full = ([answer.label for answer in loaded.predict(texts, policy=policy)] for policy in (None, "never"))
    lost = sum((a != y) - (b != y) for a, b, y in zip(early, full, labels, strict=True))
    assert lost == evidence(model)["losses"] and lost / len(held_out) <= 0.05


def test_the_fixed_sequence_is_walked_from_safe_to_risky(model, capsys):
    calibrates(capsys, model, *EASY)
    tested = [parse(setting["policy"]).threshold for setting in evidence(model)["tested"]]
    assert tested == sorted(tested) and tested[0] == 0
    chosen = parse(evidence(model)["policy"]).threshold
    assert chosen == tested[-2] or evidence(model)["tested"][-1]["p_value"] <= 0.1


def test_any_text_file_serves_for_disagreement(model, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(400, seed=77)))
    calibrates(capsys, model, *EASY, "--file", tmp_path / "texts.txt")
    assert evidence(model)["test_rows"] == 400
    assert "needs labels" in fails(
        capsys, "calibrate", model, "--risk-type", "accuracy", "--file", tmp_path / "texts.txt"
    )


def test_speed_instead_of_a_guarantee(model, capsys):
    printed = calibrates(capsys, model, "--speedup", "1.5")
    saved = evidence(model)
    assert saved["speedup"] >= 1.5 and saved["guarantee"] is None and "without a guarantee" in printed
    printed = calibrates(capsys, model, "--speedup", "50", code=1)
    assert "the maximum is 4.00 ×" in printed


def test_rows_of_unknown_origin_are_reported(model, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(400, seed=77)) * 2)
    (model / "rows.safetensors").unlink()
    printed = calibrates(capsys, model, *EASY, "--file", tmp_path / "texts.txt")
    assert "800 rows that may have been used for training" in printed  # rows count as they come
    printed = calibrates(capsys, model, *EASY, "--file", tmp_path / "texts.txt", "--count", "texts")
    assert "400 unique texts that may have been used for training" in printed


def test_several_grids_are_searched_on_other_rows_than_they_are_tested_on(model, capsys):
    calibrates(capsys, model, *EASY, "--policy", "entropy", "--policy", "patience-confidence", "--per-exit")
    saved = evidence(model)
    assert (saved["search_rows"], saved["test_rows"]) == (120, 360) and "Pareto" in saved["order"]
    AdaptiveModel.from_pretrained(model)


def test_the_front_is_not_beaten_by_anything_and_goes_from_safe_to_risky(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    trace = record(model.runner(), [text for text, _ in rows(200)], None, tmp_path / "t.safetensors", "reviews")
    risk = Risk(Guarantee("disagreement", 0.1), trace)
    policies = [*grid("entropy", trace.model_spec)[::10], *grid("patience", trace.model_spec)]
    front = pareto(risk, policies)

    def measured(policy):
        replayed = trace.replay(policy)
        return risk.losses(replayed).mean(), replayed.layer.mean()

    every = [measured(policy) for policy in policies]
    for loss, layers in map(measured, front):
        assert not any(a <= loss and b <= layers and (a, b) != (loss, layers) for a, b in every)
    assert [measured(policy)[0] for policy in front] == sorted(measured(policy)[0] for policy in front)
    assert len(run_sequence(risk, front)) <= len(front)


def test_a_temperature_changes_certainty_and_no_answer(model, capsys, reviews):
    before = AdaptiveModel.from_pretrained(model)
    texts = [text for text, _ in rows(50, seed=5)]
    answers = [answer.label for answer in before.predict(texts, policy="layer:2")]
    scores = [answer.score for answer in before.predict(texts, policy="layer:2")]
    calibrates(capsys, model, *EASY, "--temperature")
    after = AdaptiveModel.from_pretrained(model)
    temperature = after.config.exit_specs[1].temperature
    assert evidence(model)["temperatures"][1] == pytest.approx(temperature) and temperature != 1
    predictions = list(after.predict(texts, policy="layer:2"))
    assert [answer.label for answer in predictions] == answers
    expected = [1 / (1 + np.exp(-np.log(p / (1 - p)) / temperature)) for p in scores]
    assert np.allclose(expected, [answer.score for answer in predictions], atol=1e-4)
    assert evidence(model)["rows"] == 360


def test_a_temperature_is_the_one_that_explains_the_labels(tmp_path):
    """Logits that are multiplied by three get the temperature three."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 1, 3)) * 2
    chances = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=row) for row in chances])
    model = adaptive("bert", tmp_path / "encoder", num_labels=3, exits=[LAYERS])
    trace = record(model.runner(), ["a"], None, tmp_path / "t.safetensors", "x")
    overconfident = replace(trace, logits=(3 * logits).astype(np.float32), labels=labels)
    assert fit_temperatures(overconfident)[0] == pytest.approx(3, rel=0.1)


def test_a_regression_within_a_tolerance(tmp_path, capsys):
    data = write_sts(tmp_path / "data", dev=300)
    adaptive("bert", tmp_path / "encoder", num_labels=1, problem_type="regression").save_pretrained(tmp_path / "model")
    options = ["--task", "elue-sts-b", "--data-dir", data]
    assert "needs --tolerance" in fails_once(capsys, "calibrate", tmp_path / "model", *EASY, *options)
    assert main([str(part) for part in ("calibrate", tmp_path / "model", *EASY, *options, "--tolerance", 100)]) == 0
    assert evidence(tmp_path / "model")["policy"].startswith("patience:1:")
    assert "of predictions are further than 100 from the full model's" in evidence(tmp_path / "model")["sentence"]
    assert (
        main([str(part) for part in ("calibrate", tmp_path / "model", *options, "--tolerance", 1, "--speedup", 1.1)])
        == 0
    )


def fails_once(capsys, *arguments):
    """The last line of the error output; a warning about the unknown training rows comes before it."""
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


# -- failures and mistakes -----------------------------------------------------------------------


def unchanged(model, before):
    return {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before


def test_guarantees_that_need_more_rows_report_how_many(model, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    printed = calibrates(capsys, model, "--risk", "0.001", code=1)
    assert "at least 2,302 rows are needed, even without a single error" in printed and "is unchanged" in printed
    assert unchanged(model, before)


def test_one_row_is_too_few(model, capsys, tmp_path):
    (tmp_path / "one.txt").write_text("a good film\n")
    assert "at least 114 rows are needed" in calibrates(capsys, model, "--file", tmp_path / "one.txt", code=1)


def test_rows_that_were_trained_on_are_refused_and_dev_rows_warned_about(model, reviews, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    line = fails(capsys, "calibrate", model, "--split", "train")
    assert "720 of the 1,200 rows were used for training" in line and unchanged(model, before)
    assert main(["calibrate", str(model), *EASY, "--split", "dev"]) in (0, 1)
    assert "may have been used to select the checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--risk", "0"], "between 0 and 1"),
        (["--risk", "1.5"], "between 0 and 1"),
        (["--confidence", "1"], "between 0 and 1"),
        (["--policy", "entropi"], "Did you mean 'entropy'"),
        (["--policy", "learned"], "LTE"),
        (["--policy", "never"], "no number to choose"),
        (["--per-exit", "--policy", "vote"], "no threshold per exit"),
        (["--speedup", "0.5"], "at least 1"),
        (["--speedup", "2", "--risk", "0.02"], "remove --risk"),
        (["--speedup", "2", "--per-exit"], "remove one of them"),
        (["--tolerance", "1"], "for regression only"),
        (["--risk-type", "luck"], "invalid choice"),
        (["--task", "rte", "--data-dir", "nowhere"], "Folder not found: nowhere"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(arguments, message, model, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    assert message in fails(capsys, "calibrate", model, *arguments)
    assert unchanged(model, before)


def test_options_that_need_labels(model, capsys, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"film number {number}\n" for number in range(400)))
    assert "fitted to labels" in fails(capsys, "calibrate", model, "--file", texts, "--temperature")
    assert "has no splits" in fails(capsys, "calibrate", model, "--file", texts, "--split", "dev")
    strict = ["--risk", "0.01", "--confidence", "0.95"]
    texts.write_text("".join(f"film number {number}\n" for number in range(390)))
    assert "293 rows are too few" in calibrates(capsys, model, "--file", texts, "--per-exit", *strict, code=1)


def test_a_model_that_is_not_a_folder(capsys):
    assert "is not a folder" in fails(capsys, "calibrate", "nobody/nothing")


def test_another_dtype_than_the_calibrated_one_is_warned_about(model, capsys, caplog):
    calibrates(capsys, model, *EASY)
    AdaptiveModel.from_pretrained(model)
    assert "does not hold" not in caplog.text
    AdaptiveModel.from_pretrained(model, dtype=torch.bfloat16)
    assert "it was tested on torch in float32, and this is torch in bfloat16" in caplog.text


def test_a_trace_of_other_rows_is_refused(model, capsys, tmp_path):
    calibrates(capsys, model, *EASY, "--trace", tmp_path / "t.safetensors")
    calibrates(capsys, model, *EASY, "--trace", tmp_path / "t.safetensors")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(400, seed=77)))
    line = fails(capsys, "calibrate", model, "--file", tmp_path / "texts.txt", "--trace", tmp_path / "t.safetensors")
    assert "a trace of other data" in line
