"""A moderation model that predicts ABUSE for 1.5 % of the texts: a guarantee of 2 % must not lose these predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import offramp
from offramp.cli.main import main
from tests.calls import fails
from tests.tiny import WORDS, save_classifier, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS, FRESH = 6000, 4000
LABELS = ["NORMAL", "ABUSE"]


def texts(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    rows = [" ".join(generator.choice(WORDS, generator.integers(5, 20))) for _ in range(count)]
    return list(dict.fromkeys(rows))


@pytest.fixture(scope="module")
def moderation(tmp_path_factory):
    """A classifier whose bias is set so that it flags 1.5 % of the texts."""
    folder = save_classifier("bert", tmp_path_factory.mktemp("moderation") / "moderation", num_labels=2)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batch = tokenizer()(texts(2000, 1), padding=True, truncation=True, max_length=38, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits
        margin = logits[:, 1] - logits[:, 0]
        model.classifier.bias[0] += margin.quantile(0.985)
    model.config.id2label, model.config.label2id = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
    model.save_pretrained(folder)
    return folder


def adapt(moderation, output, *options):
    file = output.parent / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts(TEXTS, 2)))
    exits = ("--exits", "1,4", "--convolution", 0, "--variations", 0, "--epochs", 4)
    return main([str(part) for part in ("adapt", moderation, file, *exits, "-o", output, *options)])


def lost(folder) -> tuple[float, int, float]:
    """The fraction of the ABUSE predictions on fresh texts that become NORMAL, their number, and the mean layer."""
    runner = offramp.load(folder)
    fresh = texts(FRESH, 3)
    full, early = (runner.answer(fresh, policy=policy, quiet=True) for policy in ("never", None))
    abuse = full.values == 1
    return float((early.values[abuse] == 0).mean()), int(abuse.sum()), float(early.layer.mean())


def test_a_rare_class_keeps_its_predictions(moderation, tmp_path, capsys):
    """Without a limit per class, the overall guarantee of 2 % allows every ABUSE prediction to be lost."""
    assert adapt(moderation, tmp_path / "before", "--class-risk", "none") == 0
    out, err = capsys.readouterr()
    assert "There is no limit per class." in out and "Predicting NORMAL for every text would also keep within" in err
    assert adapt(moderation, tmp_path / "now") == 0
    out, _ = capsys.readouterr()
    (before, rows, cheap), (now, _, careful) = (lost(tmp_path / name) for name in ("before", "now"))
    assert rows > 40 and before > 0.3 and now <= 0.15 and cheap < careful < 4, (before, now, cheap, careful)
    evidence = json.loads((tmp_path / "now" / "calibration.json").read_text())
    (limit,) = [limit for limit in evidence["limits"] if limit["name"] == "ABUSE"]
    assert limit["tested"] is (limit["rows"] >= 22) and limit["changed"] <= 0.1 * limit["rows"]
    card = (tmp_path / "now" / "README.md").read_text()
    assert "| ABUSE | " in card and "| class | rows | same | 95 % interval | guaranteed |" in card
    table = out[out.index("class  ") :].splitlines()
    assert table[0].split() == ["class", "rows", "same", "95", "%", "interval", "guaranteed"]
    assert {row.split()[0] for row in table[2:4]} == set(LABELS)


def test_a_recall_that_needs_more_flagged_texts_is_refused_before_training(moderation, tmp_path, capsys):
    assert adapt(moderation, tmp_path / "fast", "--keep", "ABUSE", "--recall", 0.99) == 1
    out = capsys.readouterr().out
    assert (
        "flags 1." in out
        and "A recall of 99 % needs at least 230 flagged test texts, even without a single error" in out
    )
    assert "Step 2" not in out and [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_a_recall_is_part_of_the_guarantee(moderation, tmp_path, capsys):
    options = ("--keep", "NORMAL", "--recall", 0.98, "--class-risk", "none")
    assert adapt(moderation, tmp_path / "fast", *options) == 0
    out = capsys.readouterr().out
    assert "at least 98 % of the texts that moderation flags (NORMAL) stay flagged" in out and "recall of NORMAL" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recall", "0.9"], "--recall and --precision need --keep"),
        (["--keep", "ABUSE"], "--keep needs --recall or --precision"),
        (["--keep", "ABUSES", "--recall", "0.9"], "Did you mean 'ABUSE'?"),
        (["--keep", "ABUSE", "--flag", "P(ABUSE) > 0.5", "--recall", "0.9"], "remove one of them"),
        (["--flag", "ABUSE > 0.5", "--recall", "0.9"], "must be like 'score >= 3' or 'P(LABEL) >= 0.8'"),
        (["--flag", "score >= 3", "--recall", "0.9"], "must be like 'P(NORMAL) >= 0.8'"),
        (["--flag", "P(SPAM) >= 0.8", "--recall", "0.9"], "Unknown label 'SPAM'"),
        (["--class-risk", "2"], "--class-risk must be between 0 and 1"),
        (["--class-risk", "some"], "invalid class_risk value"),
        (["--keep", "ABUSE", "--recall", "1"], "--recall must be between 0 and 1"),
        (["--bands", "3"], "--bands is for regression only"),
        (["--keep", "ABUSE", "--precision", "0.9", "--on-average"], "--precision cannot be guaranteed with"),
        (["--group-column", "customer"], "plain text, which has no columns; remove --group-column"),
        (["--ledger", "nowhere/tests.jsonl"], "the folder"),
    ],
)
def test_mistakes_are_one_line(options, message, moderation, tmp_path, capsys):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts(600, 2)))
    assert message in fails(capsys, "adapt", moderation, file, "-o", tmp_path / "fast", *options)
