"""The scripts in examples/, run as they stand on tiny models and data."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.adaptation.test_adapt import classifier
from tests.pages import DOCS
from tests.reviews import rows
from tests.tiny import save_encoder

EXAMPLES = DOCS.parent / "examples"
pytestmark = pytest.mark.usefixtures("one_thread")


def run(monkeypatch, script: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def test_make_my_classifier_faster(tmp_path, monkeypatch, capsys):
    classifier("bert", tmp_path / "my-classifier", 2)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in rows(800)))
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "faster_classifier.py", "my-classifier", "texts.txt", "--risk", "0.2")
    printed = capsys.readouterr().out
    assert "at most 20 %" in printed and "On 80 new texts" in printed and "layer " in printed
    assert (tmp_path / "fast-classifier" / "report.html").is_file()


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
