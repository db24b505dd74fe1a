"""The policy `risk`: its judge, fitted on rows of their own, and what is done with it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from offramp import AdaptiveModel
from offramp.calibration.judge import fit
from offramp.cli.main import main
from offramp.errors import BadValue
from offramp.policies import Judged, parse
from tests.calls import fails
from tests.reviews import write_sts
from tests.tiny import adaptive

EASY = ["--risk", "0.05", "--confidence", "0.9", "--policy", "risk"]


@pytest.fixture
def model(trained, tmp_path):
    """A copy to write into."""
    copy = tmp_path / "model"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints"))
    return copy


def runs(capsys, *arguments) -> str:
    assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr()
    return capsys.readouterr().out


def test_the_curve_that_made_the_rows_is_found():
    rng = np.random.default_rng(0)
    sure = rng.normal(2, 1.5, (20_000, 2))
    chance = 1 / (1 + np.exp(np.array([0.8, 2.0]) * sure - np.array([-1.0, 0.5])))
    offsets, slopes = fit(sure, rng.random(sure.shape) < chance)
    assert offsets == pytest.approx((-1.0, 0.5), abs=0.12) and slopes == pytest.approx((0.8, 2.0), abs=0.12)


@pytest.mark.parametrize("lost", [0, 1])
def test_rows_that_never_or_always_differ_give_a_finite_judge(lost):
    offsets, slopes = fit(np.linspace(0, 9, 50)[:, None], np.full((50, 1), lost))
    assert np.isfinite([*offsets, *slopes]).all()
    risk = 1 / (1 + np.exp(slopes[0] * 5 - offsets[0]))
    assert (risk > 0.9) == (lost == 1)


def test_calibrated_saved_and_used_with_another_threshold(model, capsys, tmp_path):
    printed = runs(capsys, "calibrate", model, *EASY)
    told = json.loads((model / "calibration.json").read_text())
    assert told["test_rows"] == 360 and told["losses"] <= 18  # a quarter of the 480 fitted the judge
    loaded = AdaptiveModel.from_pretrained(model)
    policy = loaded.config.exit_policy
    assert isinstance(policy, Judged) and len(policy.offsets) == len(loaded.config.exit_points) - 1
    assert str(policy) in printed and parse(str(policy)) == policy
    assert loaded.config.calibrated is not None
    other = loaded.config.choose("risk:0.5")
    assert other == Judged(0.5, policy.offsets, policy.slopes)
    texts = tmp_path / "texts.txt"
    texts.write_text("a good film\na dull plot\n")
    assert runs(capsys, "predict", model, texts, "--policy", "risk:0.5").count("\n") >= 2
    runs(capsys, "evaluate", model, "--output", tmp_path / "run")
    assert "risk" in json.loads((tmp_path / "run" / "results.json").read_text())["policies"]


def test_a_regression_is_judged_by_how_near_two_exits_are(tmp_path, capsys):
    data = write_sts(tmp_path / "data", dev=300)
    adaptive("bert", tmp_path / "encoder", num_labels=1, problem_type="regression").save_pretrained(tmp_path / "model")
    where = ["--task", "elue-sts-b", "--data-dir", data, "--tolerance", 100]
    runs(capsys, "calibrate", tmp_path / "model", *EASY, *where)
    assert json.loads((tmp_path / "model" / "calibration.json").read_text())["policy"].startswith("risk:")


def test_without_a_judge_it_is_refused(model, capsys, tmp_path):
    (tmp_path / "t.txt").write_text("a good film\n")
    assert "needs a judge" in fails(capsys, "predict", model, tmp_path / "t.txt", "--policy", "risk:0.02")
    assert "needs a judge" in fails(capsys, "evaluate", model, "--policy", "risk", "--output", tmp_path / "x")


def test_a_judge_of_other_exits_is_refused(model):
    config = AdaptiveModel.from_pretrained(model).config
    with pytest.raises(BadValue, match="a judge of 1 and 2 early exits"):
        config.choose("risk:0.1:1:1,2")
