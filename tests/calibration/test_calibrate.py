"""`offramp calibrate`: which rows, what is written, what is refused; the statistics are in test_promises."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from offramp import AdaptiveModel
from offramp.calibration.choice import shuffled
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.sequence import pareto, walk
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
    told = evidence(model)
    policy = AdaptiveModel.from_pretrained(model).config.exit_policy
    assert str(policy) == told["policy"] and policy.name == "entropy"
    assert told["test_rows"] == 480 == told["data"]["rows"]  # 40 % of 1,200 were set aside
    assert told["guarantee"] | {"risk_type": "disagreement", "risk": 0.05, "test": "binomial"} == told["guarantee"]
    assert told["p_value"] <= 0.1 and told["losses"] <= 24 and told["machine"]["dtype"] == "float32"
    assert told["tested"][-1]["p_value"] > 0.1 or told["tested"][-1]["policy"] == told["policy"]
    sentence = "With 90 % confidence at most 5 % answers that differ from the full model's"
    assert sentence in printed and sentence in (model / "README.md").read_text()
    assert "How it was made" in (model / "README.md").read_text()


def test_the_promise_holds_on_the_rows_it_was_tested_on(model, reviews, capsys):
    calibrates(capsys, model, *EASY, "--risk-type", "accuracy")
    loaded = AdaptiveModel.from_pretrained(model)
    held = set(read_hashes(model)["calibration"].tolist())
    from offramp.data.hashes import hash_of

    lines = [line.split("\t") for line in (reviews / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    mine = [(text, label) for text, label in lines if hash_of(text) in held]
    assert len(mine) == evidence(model)["test_rows"]
    texts, labels = zip(*mine, strict=True)
    early, full = ([one.label for one in loaded.predict(texts, policy=p)] for p in (None, "never"))
    lost = sum((a != y) - (b != y) for a, b, y in zip(early, full, labels, strict=True))
    assert lost == evidence(model)["losses"] and lost / len(mine) <= 0.05


def test_the_fixed_sequence_is_walked_from_safe_to_risky(model, capsys):
    calibrates(capsys, model, *EASY)
    tested = [parse(one["policy"]).threshold for one in evidence(model)["tested"]]
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


def test_speed_instead_of_a_promise(model, capsys):
    printed = calibrates(capsys, model, "--speedup", "1.5")
    told = evidence(model)
    assert told["speedup"] >= 1.5 and told["guarantee"] is None and "without a guarantee" in printed
    printed = calibrates(capsys, model, "--speedup", "50", code=1)
    assert "the most is 4.00 ×" in printed


def test_what_is_not_known_of_the_rows_is_said(model, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(400, seed=77)) * 2)
    (model / "rows.safetensors").unlink()
    printed = calibrates(capsys, model, *EASY, "--file", tmp_path / "texts.txt")
    assert "400 rows of which it is not known whether training saw them" in printed  # copies count once


def test_several_knobs_are_searched_on_other_rows_than_they_are_tested_on(model, capsys):
    calibrates(capsys, model, *EASY, "--policy", "entropy", "--policy", "patience-confidence", "--per-exit")
    told = evidence(model)
    assert told["search_rows"] == told["test_rows"] == 240 and "Pareto" in told["order"]
    AdaptiveModel.from_pretrained(model)


def test_the_front_is_not_beaten_by_anything_and_goes_from_safe_to_risky(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    trace = record(model.runner(), [text for text, _ in rows(200)], None, tmp_path / "t.safetensors", "reviews")
    risk = Risk(Guarantee("disagreement", 0.1), trace)
    policies = [*grid("entropy", trace.model_spec)[::10], *grid("patience", trace.model_spec)]
    front = pareto(risk, policies)

    def measured(policy):
        left = trace.replay(policy)
        return risk.losses(left).mean(), left.layer.mean()

    every = [measured(policy) for policy in policies]
    for loss, layers in map(measured, front):
        assert not any(a <= loss and b <= layers and (a, b) != (loss, layers) for a, b in every)
    assert [measured(one)[0] for one in front] == sorted(measured(one)[0] for one in front)
    assert len(walk(risk, front, shuffled(trace))) <= len(front)


def test_a_temperature_changes_certainty_and_no_answer(model, capsys, reviews):
    before = AdaptiveModel.from_pretrained(model)
    texts = [text for text, _ in rows(50, seed=5)]
    answers = [one.label for one in before.predict(texts, policy="layer:2")]
    sure = [one.score for one in before.predict(texts, policy="layer:2")]
    calibrates(capsys, model, *EASY, "--temperature")
    after = AdaptiveModel.from_pretrained(model)
    warmer = after.config.exit_specs[1].temperature
    assert evidence(model)["temperatures"][1] == pytest.approx(warmer) and warmer != 1
    found = list(after.predict(texts, policy="layer:2"))
    assert [one.label for one in found] == answers
    odds = [np.log(p / (1 - p)) for p in sure]
    assert np.allclose([1 / (1 + np.exp(-one / warmer)) for one in odds], [one.score for one in found], atol=1e-4)
    assert evidence(model)["rows"] == 360


def test_a_temperature_is_the_one_that_explains_the_labels(tmp_path):
    """Logits made three times too sure get the temperature three."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 1, 3)) * 2
    chances = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=one) for one in chances])
    model = adaptive("bert", tmp_path / "encoder", num_labels=3, exits=[LAYERS])
    trace = record(model.runner(), ["a"], None, tmp_path / "t.safetensors", "x")
    sure = replace(trace, logits=(3 * logits).astype(np.float32), labels=labels)
    assert fit_temperatures(sure)[0] == pytest.approx(3, rel=0.1)


def test_a_regression_within_a_tolerance(tmp_path, capsys):
    data = write_sts(tmp_path / "data", dev=300)
    adaptive("bert", tmp_path / "encoder", num_labels=1, problem_type="regression").save_pretrained(tmp_path / "model")
    where = ["--task", "elue-sts-b", "--data-dir", data]
    assert "needs --tolerance" in fails_once(capsys, "calibrate", tmp_path / "model", *EASY, *where)
    assert main([str(one) for one in ("calibrate", tmp_path / "model", *EASY, *where, "--tolerance", 100)]) == 0
    assert evidence(tmp_path / "model")["policy"].startswith("patience:1:")
    assert "answers further than 100 from the full model's" in evidence(tmp_path / "model")["sentence"]
    assert (
        main([str(one) for one in ("calibrate", tmp_path / "model", *where, "--tolerance", 1, "--speedup", 1.1)]) == 0
    )


def fails_once(capsys, *arguments):
    """The last line; a note that the model's training is unknown comes before it."""
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


# -- honest noes and mistakes --------------------------------------------------------------------


def unchanged(model, before):
    return {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before


def test_wishes_that_cannot_be_kept_say_how_many_rows_they_take(model, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    printed = calibrates(capsys, model, "--risk", "0.001", code=1)
    assert "takes 2,995 rows without a single error" in printed and "is unchanged" in printed
    assert unchanged(model, before)


def test_one_row_is_too_few(model, capsys, tmp_path):
    (tmp_path / "one.txt").write_text("a good film\n")
    assert "takes 299 rows" in calibrates(capsys, model, "--file", tmp_path / "one.txt", code=1)


def test_rows_that_were_trained_on_are_refused_and_dev_rows_warned_about(model, reviews, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    line = fails(capsys, "calibrate", model, "--split", "train")
    assert "720 of the 1,200 rows were trained on" in line and unchanged(model, before)
    assert main(["calibrate", str(model), *EASY, "--split", "dev"]) in (0, 1)
    assert "may have helped to choose the checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--risk", "0"], "between 0 and 1"),
        (["--risk", "1.5"], "between 0 and 1"),
        (["--confidence", "1"], "between 0 and 1"),
        (["--policy", "entropi"], "Did you mean 'entropy'"),
        (["--policy", "learned"], "LTE"),
        (["--policy", "never"], "no number to choose"),
        (["--per-exit", "--policy", "vote"], "no threshold per exit"),
        (["--speedup", "0.5"], "at least 1"),
        (["--speedup", "2", "--risk", "0.02"], "leave --risk out"),
        (["--speedup", "2", "--per-exit"], "leave --per-exit out"),
        (["--tolerance", "1"], "compared exactly"),
        (["--risk-type", "luck"], "invalid choice"),
        (["--task", "rte", "--data-dir", "nowhere"], "No folder nowhere"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(arguments, said, model, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    assert said in fails(capsys, "calibrate", model, *arguments)
    assert unchanged(model, before)


def test_what_rows_without_labels_cannot_tell(model, capsys, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"film number {number}\n" for number in range(400)))
    assert "fitted to labels" in fails(capsys, "calibrate", model, "--file", texts, "--temperature")
    assert "has no splits" in fails(capsys, "calibrate", model, "--file", texts, "--split", "dev")
    assert "Not with 200 rows" in calibrates(capsys, model, "--file", texts, "--per-exit", code=1)


def test_a_model_that_is_no_folder(capsys):
    assert "is no folder" in fails(capsys, "calibrate", "nobody/nothing")


def test_another_dtype_than_the_calibrated_one_is_warned_about(model, capsys, caplog):
    calibrates(capsys, model, *EASY)
    AdaptiveModel.from_pretrained(model)
    assert "promised" not in caplog.text
    AdaptiveModel.from_pretrained(model, dtype=torch.bfloat16)
    assert "it was tested on torch in float32 and this is torch in bfloat16" in caplog.text


def test_a_trace_of_other_rows_is_refused(model, capsys, tmp_path):
    calibrates(capsys, model, *EASY, "--trace", tmp_path / "t.safetensors")
    calibrates(capsys, model, *EASY, "--trace", tmp_path / "t.safetensors")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(400, seed=77)))
    line = fails(capsys, "calibrate", model, "--file", tmp_path / "texts.txt", "--trace", tmp_path / "t.safetensors")
    assert "a trace of other data" in line
