"""The policy `risk`: its risk model, fitted on separate rows, and how it is used."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from offramp import AdaptiveModel
from offramp.calibration.risk_model import fit_curves
from offramp.calibration.risks import Guarantee
from offramp.calibration.sequence import fixed_sequence
from offramp.cli.main import main
from offramp.errors import BadValue
from offramp.policies import RiskModel, parse
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


def test_the_true_curve_is_recovered():
    rng = np.random.default_rng(0)
    sure = rng.normal(2, 1.5, (20_000, 2))
    chance = 1 / (1 + np.exp(np.array([0.8, 2.0]) * sure - np.array([-1.0, 0.5])))
    offsets, slopes = fit_curves(sure, rng.random(sure.shape) < chance)
    assert offsets == pytest.approx((-1.0, 0.5), abs=0.12) and slopes == pytest.approx((0.8, 2.0), abs=0.12)


@pytest.mark.parametrize("lost", [0, 1])
def test_rows_that_never_or_always_differ_give_a_finite_risk_model(lost):
    offsets, slopes = fit_curves(np.linspace(0, 9, 50)[:, None], np.full((50, 1), lost))
    assert np.isfinite([*offsets, *slopes]).all()
    risk = 1 / (1 + np.exp(slopes[0] * 5 - offsets[0]))
    assert (risk > 0.9) == (lost == 1)


def test_calibrated_saved_and_used_with_another_threshold(model, capsys, tmp_path):
    printed = runs(capsys, "calibrate", model, *EASY)
    evidence = json.loads((model / "calibration.json").read_text())
    assert evidence["test_rows"] == 360 and evidence["losses"] <= 18  # a quarter of the 480 rows fitted the risk model
    loaded = AdaptiveModel.from_pretrained(model)
    policy = loaded.config.exit_policy
    assert isinstance(policy, RiskModel) and len(policy.offsets) == len(loaded.config.exit_points) - 1
    assert policy.describe() in printed and parse(str(policy)) == policy
    assert loaded.config.calibrated is not None
    other = loaded.config.resolve_policy("risk:0.5")
    assert other == RiskModel(0.5, policy.offsets, policy.slopes)
    texts = tmp_path / "texts.txt"
    texts.write_text("a good film\na dull plot\n")
    assert runs(capsys, "predict", model, texts, "--policy", "risk:0.5").count("\n") >= 2
    runs(capsys, "evaluate", model, "--output", tmp_path / "run")
    assert "risk" in json.loads((tmp_path / "run" / "results.json").read_text())["policies"]
    runs(capsys, "evaluate", model, "--no-live", "--output", tmp_path / "run", "--overwrite")  # all files are managed


def test_auto_takes_entropy_or_the_risk_model(model, capsys):
    """The rows that the risk model is fitted on also choose between them, the others test the choice."""
    printed = runs(capsys, "calibrate", model, *EASY[:-1], "auto")
    evidence = json.loads((model / "calibration.json").read_text())
    assert evidence["test_rows"] == 360 and evidence["search_rows"] == 120
    assert AdaptiveModel.from_pretrained(model).config.exit_policy.name in ("entropy", "risk")
    assert {setting["policy"].split(":")[0] for setting in evidence["tested"]} <= {
        "entropy",
        "risk",
    } and "360 unique texts held out" in printed


def test_a_regression_uses_the_distance_of_two_exits(tmp_path, capsys):
    data = write_sts(tmp_path / "data", dev=300)
    adaptive("bert", tmp_path / "encoder", num_labels=1, problem_type="regression").save_pretrained(tmp_path / "model")
    options = ["--task", "elue-sts-b", "--data-dir", data, "--tolerance", 100]
    runs(capsys, "calibrate", tmp_path / "model", *EASY, *options)
    assert json.loads((tmp_path / "model" / "calibration.json").read_text())["policy"].startswith("risk:")


def test_without_a_risk_model_it_is_refused(model, capsys, tmp_path):
    (tmp_path / "t.txt").write_text("a good film\n")
    assert "needs a risk model" in fails(capsys, "predict", model, tmp_path / "t.txt", "--policy", "risk:0.02")
    assert "needs a risk model" in fails(capsys, "evaluate", model, "--policy", "risk", "--output", tmp_path / "x")


def test_too_few_rows_for_a_risk_model(model, capsys, tmp_path):
    (tmp_path / "few.txt").write_text("".join(f"a good film {number}\n" for number in range(40)))
    arguments = ["--policy", "risk", "--speedup", "1.1", "--file", tmp_path / "few.txt"]
    assert main([str(part) for part in ("calibrate", model, *arguments)]) == 2
    assert "40 rows are too few" in capsys.readouterr().err


def test_a_risk_model_of_other_exits_is_refused(model):
    config = AdaptiveModel.from_pretrained(model).config
    with pytest.raises(BadValue, match="The risk model has 1 offsets and 2 slopes"):
        config.resolve_policy("risk:0.1:1:1,2")


def test_the_guarantee_about_a_reference_holds_with_a_risk_model_fitted_on_other_rows():
    """Hundreds of calibrations with exits, the last one included, that sometimes differ from the reference."""
    rng, guarantee = np.random.default_rng(0), Guarantee("disagreement", 0.05, 0.9)
    trials, violated, passed = 600, 0, 0
    known: dict[int, float] = {}
    thresholds = np.array([0.0, *np.geomspace(0.002, 0.9, 40)])
    curves = np.array([[0.4, 1.4], [-0.2, 1.8]])  # offset and slope of each early exit
    last = 0.02  # how often the last exit itself differs

    def drawn(rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The input of the risk model at each early exit, and the probability that each exit differs."""
        sure = rng.gamma(2.0, 1.5, (rows, 2))
        chances = 1 / (1 + np.exp(curves[:, 1] * sure - curves[:, 0]))
        return sure, np.concatenate([chances, np.full((rows, 1), last)], axis=1)

    def at_exit(sure: np.ndarray, values: np.ndarray, risk_model) -> np.ndarray:
        """The value at the exit of each row, at every threshold, (thresholds, rows)."""
        offsets, slopes = (np.array(parameters) for parameters in risk_model)
        exits = 1 / (1 + np.exp(slopes * sure - offsets)) < thresholds[:, None, None]
        where = np.concatenate([exits, np.ones_like(exits[:, :, :1])], axis=2).argmax(2)
        return values[np.arange(len(values)), where]

    def p_value(errors: int, rows: int) -> float:
        if errors not in known:
            known[errors] = guarantee.p_value(np.arange(rows) < errors)
        return known[errors]

    truth = drawn(4000)
    for _ in range(trials):
        (sure, chances), (tested, risks) = drawn(200), drawn(600)
        risk_model = fit_curves(sure, rng.random(chances[:, :2].shape) < chances[:, :2])
        errors = at_exit(tested, rng.random(risks.shape) < risks, risk_model).sum(1)
        index = fixed_sequence([p_value(int(count), 600) for count in errors], guarantee.level)
        passed += index is not None
        violated += index is not None and at_exit(*truth, risk_model)[index].mean() > guarantee.risk
    assert violated / trials <= 0.1 + 3 * np.sqrt(0.09 / trials) and passed > 0.9 * trials
