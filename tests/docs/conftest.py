"""What the pages find in the folder of their reader, and a model of each answer type."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.running import KINDS, run_page, write_rows
from tests.tiny import adaptive, save_encoder


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A folder with all that a page may find there: an encoder, files, and what the first page's commands make."""
    root = tmp_path_factory.mktemp("pages")
    save_encoder("bert", root / "bert-base-uncased")
    for seed, (name, count) in enumerate({"train": 1800, "dev": 60, "calibration": 130}.items()):
        write_rows(root / f"{name}.csv", count, seed)
    for seed, (name, count) in enumerate({"texts": 12, "part-1": 5, "part-2": 6, "fresh": 130, "served": 40}.items()):
        write_rows(root / f"{name}.txt", count, 10 + seed, labelled=False)
    write_rows(root / "reviews.csv", 400, 20)
    with (root / "reviews.csv").open("a") as out:
        out.write("good film,good\n" * 30 + "  good film ,good\nbad film,bad\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run_page("how-to/choose.md")
    shutil.copytree(root / "run", root / "other-run")
    return root


@pytest.fixture
def place(home, tmp_path, monkeypatch) -> Path:
    """A copy to work in."""
    copy = tmp_path / "here"
    shutil.copytree(home, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A model of each kind, with exits that disagree."""
    root = tmp_path_factory.mktemp("kinds")
    return {kind: adaptive("bert", root / kind, **options) for kind, options in KINDS.items()}
