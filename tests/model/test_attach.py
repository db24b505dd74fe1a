"""Labels on a classifier's own head: by name, never by chance."""

from __future__ import annotations

import pytest
import torch

from offramp import AdaptiveModel
from offramp.errors import BadModel, BadValue
from offramp.files.faults import loading
from tests.calls import fails
from tests.reviews import write_glue
from tests.tiny import CONFIGS, random_batch, save_classifier, save_encoder

TEXTS = ["a lovely film", "a dull plot", "it was not very good", "bad"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A fine-tuned classifier that answers NEGATIVE or POSITIVE."""
    folder = save_classifier("bert", tmp_path_factory.mktemp("clf") / "clf", num_labels=2)
    named(folder, ["NEGATIVE", "POSITIVE"])
    return folder


def named(folder, labels):
    import json

    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))


def answers(folder, **options):
    """Each text's scores by label, in lower case."""
    model = AdaptiveModel.from_backbone(folder, **options)
    found = [answer.scores for answer in model.predict(TEXTS)]
    return model, [{label.lower(): pytest.approx(score, abs=1e-6) for label, score in one.items()} for one in found]


@pytest.mark.parametrize("asked", [["positive", "negative"], ["Negative", "POSITIVE"], ["POSITIVE", "NEGATIVE"]])
def test_the_same_names_in_another_order_or_spelling_answer_the_same(classifier, asked):
    """They turned every answer round without a word."""
    _, expected = answers(classifier)
    model, found = answers(classifier, labels=asked)
    assert list(model.config.labels) == asked and found == expected


def test_other_names_on_a_head_need_a_fresh_one(classifier):
    with pytest.raises(BadValue, match="answers with NEGATIVE, POSITIVE, and spam, ham are asked for; name them alike"):
        AdaptiveModel.from_backbone(classifier, labels=["spam", "ham"])
    model = AdaptiveModel.from_backbone(classifier, labels=["spam", "ham"], fresh_head=True)
    assert model.config.labels == ("spam", "ham") and model.config.exit_specs[-1].head == "linear"


def test_classes_that_nobody_named_take_names_and_numbers_are_positions(classifier, tmp_path):
    nameless = save_classifier("bert", tmp_path / "clf", num_labels=2)
    named(nameless, ["LABEL_0", "LABEL_1"])
    _, expected = answers(nameless)
    model, found = answers(nameless, labels=["ham", "spam"])
    assert model.config.labels == ("ham", "spam")
    assert [list(one.values()) for one in found] == [list(one.values()) for one in expected]
    assert AdaptiveModel.from_backbone(classifier, labels=["0", "1"]).config.labels == ("0", "1")


def test_another_number_of_classes_leaves_the_head_out_aloud(classifier, caplog):
    model = AdaptiveModel.from_backbone(classifier, labels=["a", "b", "c"])
    assert model.config.num_labels == 3 and "its own head is left out" in caplog.text


def test_training_asks_for_a_fresh_head_too(classifier, tmp_path, capsys):
    glue = write_glue(tmp_path / "glue")
    named(save_classifier("bert", tmp_path / "clf", num_labels=2), ["spam", "ham"])
    lines = [line.split("\t") for line in (glue / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    own = tmp_path / "own.csv"
    own.write_text("text,label\n" + "".join(f"{text},{['no', 'yes'][int(label)]}\n" for text, label in lines))
    call = ["train", tmp_path / "clf", "--train-file", own, "--dev-file", own, "-o", tmp_path / "out", "--cpu"]
    assert "ask for a fresh head (--fresh-head" in fails(capsys, *call)
    assert not (tmp_path / "out").exists()


# -- whose fault it is ---------------------------------------------------------------------------


def test_our_own_bugs_and_a_lack_of_memory_are_not_the_users_fault(tmp_path):
    """They were told as a model that cannot be read."""
    save_encoder("bert", tmp_path / "model")
    with pytest.raises(torch.OutOfMemoryError), loading(tmp_path / "model"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    model = AdaptiveModel.from_backbone(tmp_path / "model", num_labels=2)
    with pytest.raises(AttributeError), loading(tmp_path / "model"):
        model.config.family.step(model.backbone, None, 1)  # a line of ours raises
    with pytest.raises(BadModel, match="cannot be read as a model"), loading(tmp_path / "model"):
        CONFIGS["bert"].__class__(hidden_size="wide")  # a library's, reading what a file holds
    assert model(**random_batch(1, 1)).logits.shape == (1, 2)
