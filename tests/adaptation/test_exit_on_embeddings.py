"""By default, `adapt` also tries an exit on the embeddings (layer 0), and convolutions in heads on layers 0 to 2."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import offramp
from offramp import AdaptiveModel
from offramp.adaptation import run as adapting
from offramp.cli.main import main
from offramp.model.exit_spec import CONVOLUTION
from tests.adaptation.test_adapt import EASY, adapts, classifier, random_texts, write
from tests.calls import fails, json_lines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return classifier("bert", tmp_path_factory.mktemp("models") / "original", 2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts") / "texts.txt", random_texts(900))


@pytest.fixture
def candidates(monkeypatch):
    """The exits that `adapt` trains, as they are when it selects some of them: (layer, convolution)."""
    trained, select = [], adapting.select_exits

    def select_and_record(plan):
        trained.extend((spec.layer, spec.convolution) for spec in plan.model.config.exit_specs)
        return select(plan)

    monkeypatch.setattr(adapting, "select_exits", select_and_record)
    return trained


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [(0, CONVOLUTION), (1, CONVOLUTION), (2, CONVOLUTION), (3, 0), (4, 0)]),
        (["--exits", "all"], [(1, CONVOLUTION), (2, CONVOLUTION), (3, 0), (4, 0)]),
        (["--exits", "0,3", "--convolution", "16"], [(0, 16), (3, 0), (4, 0)]),
        (["--convolution", "0"], [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]),
        (["--heads", "linear"], [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]),
    ],
    ids=["default", "all layers", "listed layers", "no convolution", "linear heads"],
)
def test_the_candidates(options, expected, candidates, original, texts, tmp_path, capsys):
    command = ["adapt", original, texts, *EASY, "--epochs", "0.1", *options, "-o", tmp_path / "fast"]
    assert main([str(part) for part in command]) in (0, 1)
    assert candidates == expected
    assert f"train {len(expected) - 1} early exits" in capsys.readouterr().out


def test_a_model_with_an_exit_on_the_embeddings(original, texts, tmp_path, capsys):
    """Its card, its report, `info`, `predict`, and an export in one file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    fast = tmp_path / "fast"
    options = [*EASY, "--risk", "0.3", "--exits", "0", "--class-risk", "none"]
    options += ["--backend", "onnx", "--int8", "none"]
    out = adapts(capsys, original, texts, *options, "-o", fast)
    assert f"Wrote {fast} with exits on layers 0, 4." in out
    config = AdaptiveModel.from_pretrained(fast).config
    assert [(spec.layer, spec.convolution) for spec in config.exit_specs] == [(0, CONVOLUTION), (4, 0)]
    assert "| 0 | attention | queries |" in (fast / "README.md").read_text()
    page = (fast / "report.html").read_text()
    results = json.loads(re.search(r'<script type="application/json" id="results">(.*?)</script>', page)[1])
    assert [exit_["layer"] for exit_ in results["exits"]] == [0, 4] and results["chosen"]["exits"][0] > 0
    assert main(["info", str(fast)]) == 0
    info = capsys.readouterr().out
    assert re.search(r"^ +0  attention queries$", info, re.MULTILINE) and "exits on layers 0, 4" in info
    rows = random_texts(50, seed=8)
    answers = json_lines(capsys, "predict", fast, write(tmp_path / "rows.txt", rows))
    assert 0 in {answer["exit_layer"] for answer in answers} <= {0, 4}
    assert main(["export", str(fast), "--one-file"]) == 0
    session = onnxruntime.InferenceSession(fast / "onnx" / "model.onnx")
    settings = json.loads((fast / "onnx" / "model.json").read_text())
    runner = offramp.load(fast, "onnx", threads=1)
    expected = runner.answer(rows)
    encoded = runner.tokenizer(rows, padding=True, return_tensors="np")
    feed = {entry.name: encoded[entry.name] for entry in session.get_inputs() if entry.name in encoded}
    feed |= {"threshold": np.array(settings["threshold"], np.float32), "max_layers": np.array(1000)}
    logits, layers = session.run(["logits", "exit_layer"], feed)
    assert settings["exits"] == [0, 4] and layers.tolist() == expected.layer.tolist()
    np.testing.assert_allclose(logits, expected.logits, atol=1e-4)


def test_a_model_with_one_layer_gets_an_exit_on_the_embeddings(texts, candidates, tmp_path, capsys):
    original = classifier("bert", tmp_path / "original", 2, num_hidden_layers=1)
    message = fails(capsys, "adapt", original, texts, "--exits", "all", "-o", tmp_path / "fast")
    assert "has only one layer; an early exit can only be on the embeddings: set --exits auto." in message
    assert main([str(part) for part in ("adapt", original, texts, *EASY, "-o", tmp_path / "fast")]) in (0, 1)
    assert [layer for layer, _ in candidates] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--convolution", "-1"], "--convolution must be between 0 and 4,096, got -1."),
        (["--convolution", "5000"], "--convolution must be between 0 and 4,096, got 5000."),
        (["--convolution", "16", "--heads", "linear"], "the heads are linear. Set --convolution 0."),
        (["--exits", "some"], "argument --exits: invalid layers value: 'some'"),
        (["--exits", "9"], "--exits must be layers from 0 to 4, got 9."),
    ],
)
def test_mistakes_are_one_line(options, message, original, texts, tmp_path, capsys):
    assert message in fails(capsys, "adapt", original, texts, *options, "-o", tmp_path / "fast")
    assert [*tmp_path.iterdir()] == []
