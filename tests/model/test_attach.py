"""Labels of a classifier's own head are matched by name."""

from __future__ import annotations

import pytest
import torch

from offramp import AdaptiveModel
from offramp.errors import BadModel, BadValue
from offramp.files.load_errors import loading
from tests.calls import fails
from tests.reviews import write_glue
from tests.tiny import CONFIGS, random_batch, save_classifier, save_encoder

TEXTS = ["a lovely film", "a dull plot", "it was not very good", "bad"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A fine-tuned classifier with the labels NEGATIVE and POSITIVE."""
    folder = save_classifier("bert", tmp_path_factory.mktemp("clf") / "clf", num_labels=2)
    set_labels(folder, ["NEGATIVE", "POSITIVE"])
    return folder


def set_labels(folder, labels):
    import json

    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))


def predict_scores(folder, **options):
    """Return the model and the scores of each text by label, in lower case."""
    model = AdaptiveModel.from_backbone(folder, **options)
    scores = [answer.scores for answer in model.predict(TEXTS)]
    return model, [{label.lower(): pytest.approx(score, abs=1e-6) for label, score in row.items()} for row in scores]


@pytest.mark.parametrize("labels", [["positive", "negative"], ["Negative", "POSITIVE"], ["POSITIVE", "NEGATIVE"]])
def test_labels_in_another_order_or_case_give_the_same_scores(classifier, labels):
    """They swapped the predictions silently."""
    _, expected = predict_scores(classifier)
    model, scores = predict_scores(classifier, labels=labels)
    assert list(model.config.labels) == labels and scores == expected


def test_other_labels_need_a_fresh_head(classifier):
    with pytest.raises(BadValue, match="are NEGATIVE, POSITIVE, but spam, ham are requested"):
        AdaptiveModel.from_backbone(classifier, labels=["spam", "ham"])
    model = AdaptiveModel.from_backbone(classifier, labels=["spam", "ham"], fresh_head=True)
    assert model.config.labels == ("spam", "ham") and model.config.exit_specs[-1].head == "linear"


def test_generic_labels_and_numbers_are_matched_by_position(classifier, tmp_path):
    nameless = save_classifier("bert", tmp_path / "clf", num_labels=2)
    set_labels(nameless, ["LABEL_0", "LABEL_1"])
    _, expected = predict_scores(nameless)
    model, scores = predict_scores(nameless, labels=["ham", "spam"])
    assert model.config.labels == ("ham", "spam")
    assert [list(row.values()) for row in scores] == [list(row.values()) for row in expected]
    assert AdaptiveModel.from_backbone(classifier, labels=["0", "1"]).config.labels == ("0", "1")


def test_another_number_of_labels_replaces_the_head_with_a_warning(classifier, caplog):
    model = AdaptiveModel.from_backbone(classifier, labels=["a", "b", "c"])
    assert model.config.num_labels == 3 and "its head is replaced by a new, untrained one" in caplog.text


def test_training_with_other_labels_needs_a_fresh_head(classifier, tmp_path, capsys):
    glue = write_glue(tmp_path / "glue")
    set_labels(save_classifier("bert", tmp_path / "clf", num_labels=2), ["spam", "ham"])
    lines = [line.split("\t") for line in (glue / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    own = tmp_path / "own.csv"
    own.write_text("text,label\n" + "".join(f"{text},{['no', 'yes'][int(label)]}\n" for text, label in lines))
    call = ["train", tmp_path / "clf", "--train-file", own, "--dev-file", own, "-o", tmp_path / "out", "--cpu"]
    assert "train a new head with --fresh-head" in fails(capsys, *call)
    assert not (tmp_path / "out").exists()


# -- which exceptions become user errors ---------------------------------------------------------


def test_bugs_and_out_of_memory_are_not_reported_as_bad_models(tmp_path):
    save_encoder("bert", tmp_path / "model")
    with pytest.raises(torch.OutOfMemoryError), loading(tmp_path / "model"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    model = AdaptiveModel.from_backbone(tmp_path / "model", num_labels=2)
    with pytest.raises(AttributeError), loading(tmp_path / "model"):
        model.config.family.step(model.backbone, None, 1)  # raised by offramp
    with pytest.raises(BadModel, match="cannot be read as a model"), loading(tmp_path / "model"):
        CONFIGS["bert"].__class__(hidden_size="wide")  # raised by a library while it reads a file
    assert model(**random_batch(1, 1)).logits.shape == (1, 2)
