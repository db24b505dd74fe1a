"""The Python API: the function of every command, its arguments and results, and the wording of its messages."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import logging
import re

import numpy as np
import pandas
import pytest

import offramp
from offramp.api.options import arguments_of
from offramp.api.train import train
from offramp.calibration.risks import Guarantee
from offramp.cli.main import COMMANDS, main
from offramp.cli.wording import as_options, flags_of
from offramp.data.input_data import resolve_input
from offramp.extras import MissingExtra
from offramp.training.recipes import recipe_options
from offramp.training.settings import Settings
from tests.adaptation.test_adapt import classifier, random_texts
from tests.reviews import rows
from tests.tiny import adaptive

pytestmark = pytest.mark.usefixtures("one_thread")

# arguments without an option, with the reason; options without an argument
PYTHON_ONLY = {
    "labels": "a file has them in a column",
    "groups": "a file has them in a column",
    "announce": "the command prints",
    "command": "set by the command",
    "train_data": "a file is --train-file",
    "dev_data": "a file is --dev-file",
}
TERMINAL_ONLY = {"help", "json"}


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"offramp.cli.{command}").add_arguments(parser)
    return parser


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_function_have_the_same_names_and_defaults(command):
    function = getattr(offramp, command)
    parameters = arguments_of(function)
    options = {action.dest: action for action in parser_of(command)._actions}
    if command == "train":  # both are made from the dataclass of its settings
        settings = {field for field in Settings.__dataclass_fields__ if field != "recipe_options"}
        assert settings | set(recipe_options()) | set(parameters) - set(PYTHON_ONLY) - {"settings"} == set(options) - {
            "help"
        }
        return
    only = TERMINAL_ONLY if command in ("info", "audit") else {"help"}
    assert set(parameters) - set(PYTHON_ONLY) == set(options) - only
    for name, default in parameters.items():
        if name in options and options[name].option_strings and default is not inspect.Parameter.empty:
            value = options[name].default
            same = (
                value == default or (not value and not default and value is not False) or tuple(value) == tuple(default)
            )
            assert same, (name, value, default)
    assert all(name in function.__doc__ for name in inspect.signature(function).parameters), "all are documented"


QUICK = {"risk": 0.2, "confidence": 0.9, "epochs": 12, "variations": 0}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return classifier("bert", tmp_path_factory.mktemp("original") / "my-classifier", 2)


@pytest.fixture(scope="module")
def fast(original, tmp_path_factory):
    output = tmp_path_factory.mktemp("adapted") / "fast"
    return offramp.adapt(original, random_texts(700), output=output, **QUICK)


def test_the_default_guarantee_is_the_same_everywhere():
    defaults = [inspect.signature(function).parameters for function in (offramp.adapt, offramp.tune)]
    values = {(parameters["risk"].default, parameters["confidence"].default) for parameters in defaults}
    assert values == {(Guarantee().risk, Guarantee().confidence)} == {(0.02, 0.9)}  # calibrate uses Guarantee's
    for command in ("adapt", "tune", "calibrate"):
        text = " ".join(run_help(command).split())
        assert "(default: 0.02)" in text and "confidence level (default: 0.9)" in text, command


def run_help(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([command, "--help"])
    return out.getvalue()


def test_dir_lists_the_public_names():
    names = [name for name in dir(offramp) if not name.startswith("__")]
    assert names == sorted(offramp.__all__)


def test_adapt_gives_a_guarantee_a_speedup_and_a_report(fast):
    assert fast and fast.folder.is_dir() and fast.report.is_file() and fast.speedup > 0
    assert "With 90 % confidence, at most 20 % of predictions differ from my-classifier's" in fast.guarantee
    assert fast.guarantee in str(fast) and fast.guarantee.split("'")[0] in fast._repr_html_()
    answers = list(fast.predict(random_texts(20, seed=5)))
    assert len(answers) == 20 and {answer.exit_layer for answer in answers} <= set(fast.layers)
    evidence = json.loads((fast.folder / "calibration.json").read_text())
    assert evidence["model"]["name"] == str(fast.folder)


def test_texts_in_every_form_are_the_same_texts():
    datasets = pytest.importorskip("datasets")
    texts = random_texts(40)
    column = datasets.Dataset.from_dict({"any": texts})["any"]
    for form in (texts, iter(texts), pandas.Series(texts, index=range(5, 45)), column, np.array(texts)):
        assert list(resolve_input(form).read()) == texts
    for form in (pandas.DataFrame({"a": [1] * 40, "text": texts}), datasets.Dataset.from_dict({"text": texts})):
        assert list(resolve_input(form).read()) == texts
    assert list(resolve_input(pandas.DataFrame({3: texts}), text_column="3").read()) == texts
    pairs = list(zip(texts, texts[::-1], strict=True))
    frame = pandas.DataFrame(pairs, columns=["question", "sentence"])
    assert list(resolve_input(frame).read(["question", "sentence"])) == list(resolve_input(pairs).read()) == pairs
    for wrong in ({"train": texts}, 3, [3], [("a", "b", "c")]):
        with pytest.raises(offramp.OfframpError):
            resolve_input(wrong)


def test_adapt_accepts_a_series_and_predict_a_table(original, fast, tmp_path):
    texts = pandas.Series(random_texts(700), index=range(5, 705))
    again = offramp.adapt(original, texts, output=tmp_path / "again", **QUICK)
    rows = [(folder / "rows.safetensors").read_bytes() for folder in (fast.folder, again.folder)]
    assert rows[0] == rows[1]  # the same texts in the same parts
    table = pandas.DataFrame({"text": ["a film", "bad"]})
    assert len(list(again.predict(table))) == 2
    with pytest.raises(offramp.OfframpError, match="Pass the column of texts"):
        again.load().predict(table)


def test_calibrate_uses_texts_in_memory_instead_of_held_out_rows(fast, tmp_path):
    import shutil

    model = shutil.copytree(fast.folder, tmp_path / "model")
    result = offramp.calibrate(model, random_texts(900)[700:], risk=0.3, confidence=0.9, policy="entropy")
    assert result.evidence["data"]["name"] == "texts" and result.evidence["rows"] == 200


def test_a_result_without_a_faster_model_is_false_and_writes_nothing(original, tmp_path):
    options = QUICK | {"risk": 0.02, "epochs": 0.01}
    result = offramp.adapt(original, random_texts(700), output=tmp_path / "none", **options)
    if result:
        pytest.skip("these exits satisfy 2 % by chance")
    assert result.folder is None and result.guarantee is None and result.reason and not (tmp_path / "none").exists()
    with pytest.raises(offramp.OfframpError, match="No faster model was written"):
        result.predict(["a text"])


def test_messages_go_to_the_logger_and_not_to_the_streams(fast, capsys, caplog):
    with caplog.at_level(logging.INFO, "offramp"):
        offramp.export(fast.folder, random_texts(60, 3), backend="onnx", int8="none", overwrite=True, threads=1)
    assert any("Exporting exits on layers" in record.message for record in caplog.records)
    assert capsys.readouterr().out == ""


def test_predict_returns_or_writes_predictions(fast, tmp_path):
    texts = random_texts(30, 6)
    answers = list(offramp.predict(fast.folder, texts))
    written = offramp.predict(fast.folder, texts, output=tmp_path / "answers.jsonl")
    assert written.rows == 30 and ": 30 rows." in str(written)
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [answer.label for answer in answers]
    stream = io.StringIO()
    offramp.predict(fast.folder, iter(texts), output=stream, format="tsv")
    assert len(stream.getvalue().splitlines()) == 31


def test_evaluate_accepts_labels_in_memory_and_writes_only_with_output(fast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = random_texts(60, 7)
    labels = [answer.label for answer in offramp.load(fast.folder).predict(texts, policy="never")]
    result = offramp.evaluate(fast.folder, texts, labels, live=False)
    assert result.results.exits[-1].scores["acc"] == 1.0 and result.folder is None and not any(tmp_path.iterdir())
    frame = pandas.DataFrame({"body": texts, "gold": labels})
    again = offramp.evaluate(fast.folder, frame, text_column="body", label_column="gold", live=False)
    assert again.results.data.rows == 60 and again.results.exits[-1].scores["acc"] == 1.0
    with pytest.raises(offramp.OfframpError, match="60 texts and 2 labels"):
        offramp.evaluate(fast.folder, texts, labels[:2])


def test_train_accepts_data_in_memory(tmp_path, encoders):
    examples = rows(160, 1)
    texts, labels = [text for text, _ in examples], [["bad", "good"][label] for _, label in examples]
    quick = {"epochs": 1, "batch_size": 16, "max_length": 16, "learning_rate": 5e-3, "cpu": True, "metric": "f1_macro"}
    result = offramp.train(
        encoders["bert"], output=tmp_path / "model", train_data=(texts[:120], labels[:120]),
        dev_data=pandas.DataFrame({"text": texts[120:], "label": labels[120:]}), **quick,
    )  # fmt: skip
    assert isinstance(result, offramp.TrainResult) and result.metric == "f1_macro" and len(result.layers) == 4
    assert offramp.load(result.folder).config.labels == ("bad", "good")
    with pytest.raises(offramp.OfframpError, match="Unknown setting 'batchsize'"):
        train(encoders["bert"], output=tmp_path / "other", batchsize=3)


@pytest.mark.parametrize(
    ("call", "in_python", "on_the_command_line"),
    [
        (
            ["calibrate", "MODEL", "--file", "F", "--tolerance", "1"],
            "`tolerance=` is for regression only",
            "--tolerance is for regression only",
        ),
        (
            ["predict", "MODEL", "F", "--batch-tokens", "0"],
            "`batch_tokens` must be at least 1",
            "--batch-tokens must be at least 1",
        ),
        (
            ["evaluate", "MODEL", "--file", "F", "--thresholds", "1", "-o", "OUT"],
            "choose it with `policy=`",
            "with --policy",
        ),
        (["export", "MODEL", "--int8", "static", "--threads", "1"], "set `texts=`", "set --file"),
    ],
)
def test_errors_name_arguments_in_python_and_options_on_the_command_line(
    call, in_python, on_the_command_line, tmp_path, capsys
):
    adaptive("bert", tmp_path / "encoder", num_labels=2).save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("a film\nbad\n")
    paths = {"MODEL": str(tmp_path / "model"), "F": str(tmp_path / "texts.txt"), "OUT": str(tmp_path / "out")}
    words = [paths.get(word, word) for word in call]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert on_the_command_line in error and "`" not in error, error
    parsed = parser_of(call[0]).parse_args(words[1:])
    parameters = arguments_of(getattr(offramp, call[0]))
    arguments = {name: value for name, value in vars(parsed).items() if name in parameters}
    texts = arguments.get("texts")
    arguments["texts"] = texts[0] if isinstance(texts, list) else texts
    with pytest.raises(offramp.OfframpError) as caught:
        list(getattr(offramp, call[0])(**arguments))
    assert in_python in str(caught.value)


def test_messages_name_options_on_the_command_line():
    flags = {"texts": "--file", "header": "--no-header", "policy": "--policy", "overwrite": "--overwrite"}
    assert (
        as_options("give `overwrite=True`, `texts=` or `header=False`", flags)
        == "give --overwrite, --file or --no-header"
    )
    assert as_options("`policy` is 3; `policy='risk'`", flags) == "--policy is 3; --policy risk"
    assert as_options("`offramp.export('a b', backend='onnx', overwrite=True)`", flags) == (
        "`offramp export 'a b' --backend onnx --overwrite`"
    )
    assert as_options("`offramp.calibrate(model, policy='risk')`", flags) == "`offramp calibrate MODEL --policy risk`"
    assert as_options("`config.json` and `exits[0]` stay", flags) == "`config.json` and `exits[0]` stay"
    assert flags_of(parser_of("export"))["smooth"] == "--no-smooth"


@pytest.mark.parametrize(
    ("missing", "call", "expected"),
    [
        (["scipy"], "offramp.evaluate('m', ['a'])", "Evaluating needs scipy: pip install '.[train]'"),
        (
            ["onnxruntime"],
            "offramp.export('m', backend='onnx')",
            "Exporting needs onnxruntime: pip install '.[onnx]'",
        ),
        (
            ["scipy", "openvino"],
            "offramp.adapt('m', 'texts.txt', output='fast', backend='openvino')",
            "Adapting needs scipy, openvino: pip install '.[train,openvino]'",
        ),
        (["openvino"], "offramp.tune('m', backend='openvino')", "needs openvino: pip install '.[openvino]'"),
        (["fastapi"], "offramp.serve('m')", "Serving needs fastapi: pip install '.[serve]'"),
        (["scipy"], "offramp.audit('state.json')", "Testing audits needs scipy: pip install '.[serve]'"),
        (
            ["opentelemetry.sdk"],
            "offramp.serve('m', otel=True)",
            "`otel=True` needs opentelemetry.sdk: pip install '.[otel]'",
        ),
        (["ray"], "offramp.predict('m', 'f.txt', engine='ray', output='o')", "needs ray: pip install '.[ray]'"),
    ],
)
def test_a_missing_extra_is_named(missing, call, expected, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))
    with pytest.raises(MissingExtra, match=re.escape(expected)):
        eval(call)


def test_an_installed_package_names_the_extra_of_the_package(monkeypatch, tmp_path):
    from offramp import extras

    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "offramp" / "extras.py"))
    assert extras.install_command("onnx") == "pip install 'offramp[onnx]'"
