"""Variations of texts, which exits learn from as well."""

from __future__ import annotations

import json

import pytest

from offramp.adaptation import exit_training
from offramp.cli.main import main
from offramp.training.imitation.variations import vary
from tests.adaptation.test_adapt import classifier, random_texts, write
from tests.calls import fails

pytestmark = pytest.mark.usefixtures("one_thread")

RISK = ["--risk", "0.2", "--epochs", "0.1"]
TEXTS = ["a lovely film", "a dull and lifeless film", "the plot is thin but the actors are good"]


def test_every_text_has_as_many_variations_and_they_are_the_same_for_a_seed():
    varied = vary(TEXTS, 4, seed=1)
    assert len(varied) == 12 and varied == vary(TEXTS, 4, seed=1) != vary(TEXTS, 4, seed=2)
    assert vary(TEXTS, 0, seed=1) == []


def test_words_are_dropped_replaced_and_joined():
    dropped, replaced, joined = (vary(TEXTS, 3, seed=1)[start : start + 3] for start in (0, 3, 6))
    words = {word for text in TEXTS for word in text.split()}
    for text, varied in zip(TEXTS, dropped, strict=True):
        assert len(varied.split()) < len(text.split()) and set(varied.split()) <= set(text.split())
    assert all(set(varied.split()) <= words for varied in replaced)
    for text, varied in zip(TEXTS, joined, strict=True):
        assert varied.startswith(f"{text} ") and varied.removeprefix(f"{text} ") in TEXTS


def test_one_side_of_a_pair_varies():
    pairs = [(text, text[::-1]) for text in TEXTS]
    for pair, varied in zip(pairs * 3, vary(pairs, 3, seed=0), strict=True):
        assert isinstance(varied, tuple) and len(varied) == 2
        assert pair[0] == varied[0] or pair[1] == varied[1]


@pytest.mark.parametrize("text", ["", "好电影真的好", "a", " "])
def test_texts_without_words_or_spaces(text):
    varied = vary([text, text], 6, seed=0)
    assert len(varied) == 12 and all(isinstance(variation, str) for variation in varied)
    if len(text) > 1 and text.strip():
        assert any(0 < len(variation) < len(text) for variation in varied)


@pytest.fixture
def recorded(monkeypatch):
    """The texts that the model is run on for training."""
    texts, record = [], exit_training.record_states

    def record_and_keep(model, given, *arguments, **options):
        texts.extend(given)
        return record(model, given, *arguments, **options)

    monkeypatch.setattr(exit_training, "record_states", record_and_keep)
    return texts


@pytest.mark.parametrize(("options", "expected"), [([], 3), (["--variations", "0"], 0), (["--variations", "5"], 5)])
def test_adapt_runs_the_model_on_texts_and_variations(options, expected, recorded, tmp_path, capsys):
    model, texts = classifier("bert", tmp_path / "model", 2), random_texts(300)
    file = write(tmp_path / "texts.txt", texts)
    command = ["adapt", model, file, *RISK, *options, "-o", tmp_path / "fast"]
    assert main([str(part) for part in command]) in (0, 1)
    training = [text for text in recorded if text in set(texts)]
    assert len(recorded) == (1 + expected) * 150 and recorded[:150] == training[:150]
    out = capsys.readouterr().out
    assert (f"on {expected} variations of each" in out) is bool(expected)


def test_large_states_leave_no_room_for_variations(recorded, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(exit_training, "MAX_STATES", 200_000)
    model, file = classifier("bert", tmp_path / "model", 2), write(tmp_path / "texts.txt", random_texts(300))
    assert main(["adapt", str(model), str(file), *RISK, "-o", str(tmp_path / "fast")]) in (0, 1)
    assert len(recorded) == 150


def test_an_impossible_number_is_one_line(tmp_path, capsys):
    model, file = classifier("bert", tmp_path / "model", 2), write(tmp_path / "texts.txt", random_texts(300))
    for number in ("-1", "101"):
        message = fails(capsys, "adapt", model, file, "--variations", number, "-o", tmp_path / "fast")
        assert f"--variations must be between 0 and 100, got {number}." in message


def test_a_resumed_run_must_have_the_same_variations(tmp_path, capsys, monkeypatch):
    model, file = classifier("bert", tmp_path / "model", 2), write(tmp_path / "texts.txt", random_texts(300))
    command = ["adapt", str(model), str(file), *RISK, "-o", str(tmp_path / "fast")]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exit_training, "imitate", interrupt)
    assert main(command) == 130
    state = json.loads((tmp_path / ".fast.adapting" / "adapting.json").read_text())
    assert state["imitation"]["variations"] is None
    capsys.readouterr()
    assert main([*command, "--resume", "--variations", "1"]) == 2
    assert "had a different model, texts or options" in capsys.readouterr().err
