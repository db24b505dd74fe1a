"""The scripts in examples/, run as they stand on tiny models and data."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys

import pytest

import offramp
from tests.adaptation.test_adapt import classifier
from tests.pages import DOCS
from tests.rankings import random_rankings, save_reranker, write_rankings
from tests.reviews import rows
from tests.tiny import adaptive, save_encoder

EXAMPLES = DOCS.parent / "examples"
pytestmark = pytest.mark.usefixtures("one_thread")


def run(monkeypatch, script: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def test_make_my_classifier_faster(tmp_path, monkeypatch, capsys):
    classifier("bert", tmp_path / "my-classifier", 2)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(500)))
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "faster_classifier.py", "my-classifier", "texts.txt", "--risk", "0.4")
    printed = capsys.readouterr().out
    assert "at most 40 %" in printed and "On 50 new texts" in printed and "layer " in printed
    assert (tmp_path / "fast-classifier" / "report.html").is_file()


def test_make_my_reranker_faster(tmp_path, monkeypatch, capsys):
    save_reranker(tmp_path / "my-reranker")
    write_rankings(tmp_path / "rankings.jsonl", random_rankings(160, seed=1))
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "faster_reranker.py", "my-reranker", "rankings.jsonl", "--top-k", "3", "--risk", "0.4")
    printed = capsys.readouterr().out
    assert "at most 40 %" in printed and "On 16 new queries" in printed and "Report: " in printed


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a single graph, and texts, some of them longer than the maximum length."""
    root = tmp_path_factory.mktemp("one_file")
    model = adaptive("bert", root / "encoder", labels=["no", "perhaps", "yes"], policy="entropy:0.6")
    model.save_pretrained(root / "model")
    texts = [text for text, _ in rows(70)] + ["good film " * 40]
    offramp.export(root / "model", texts, int8="none", one_file="entropy:0.6")
    (root / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    runner = offramp.load(root / "model", backend="onnx")
    return root, [answer.to_dict() for answer in runner.predict(texts, policy="entropy:0.6")]


def test_one_file_from_text(exported, monkeypatch, capsys):
    root, expected = exported
    run(monkeypatch, "one_file.py", root / "model", root / "texts.txt")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [pytest.approx(prediction, abs=2e-6) for prediction in expected]
    assert len({prediction["exit_layer"] for prediction in printed}) > 1


def test_one_file_from_text_in_node(exported, tmp_path):
    """Needs `npm install onnxruntime-node @huggingface/tokenizers` in the folder NODE_MODULES_PARENT."""
    parent = os.environ.get("NODE_MODULES_PARENT")
    if shutil.which("node") is None or parent is None:
        pytest.skip("node or the packages of examples/one_file.mjs are not installed; set NODE_MODULES_PARENT")
    root, expected = exported
    script = tmp_path / "one_file.mjs"
    script.write_text((EXAMPLES / "one_file.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(f"{parent}/node_modules")
    command = ["node", str(script), str(root / "model"), str(root / "texts.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed == [pytest.approx(prediction, abs=2e-6) for prediction in expected]


def test_compare_methods_on_mrpc(tmp_path, monkeypatch, capsys):
    save_encoder("bert", tmp_path / "encoder")
    write_mrpc(tmp_path / "GLUE")
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "compare_methods.py", "encoder", "--data-dir", "GLUE", "--epochs", "1")
    printed = capsys.readouterr().out
    assert all(f"{recipe}: full model " in printed for recipe in ("deebert", "pabee", "romebert-sd-gr"))
    assert all(
        (tmp_path / "comparison" / f"figure-{policy}" / "curve.png").is_file() for policy in ("entropy", "patience")
    )


def write_mrpc(folder, train: int = 64, dev: int = 16) -> None:
    """The MRPC folder of a GLUE download."""
    (folder / "MRPC").mkdir(parents=True)
    for split, count, seed in (("train", train, 1), ("dev", dev, 2)):
        lines = [
            f"{label}\t{number}\t{number}\t{text}\t{text[:20]}"
            for number, (text, label) in enumerate(rows(count, seed))
        ]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        (folder / "MRPC" / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
