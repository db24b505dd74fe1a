"""Heads that learn a frozen model's answers from its states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offramp import AdaptiveModel
from offramp.answers import SINGLE_LABEL
from offramp.core.batch import Batch
from offramp.core.loop import every_exit
from offramp.errors import BadModel, BadValue
from offramp.model.attach import ExitOptions
from offramp.training.imitation.heads import ImitationOptions, _batches, imitate, usual_epochs
from offramp.training.imitation.original import cut_to, with_new_exits
from offramp.training.imitation.states import record_states
from offramp.training.imitation.teacher import called, logits_of_model
from tests.adaptation.test_adapt import classifier, some_texts
from tests.tiny import random_batch, save_encoder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return classifier("bert", tmp_path_factory.mktemp("theirs") / "original", 2)


def test_few_texts_are_read_more_often():
    assert [usual_epochs(rows) for rows in (10, 3000, 12_000, 10**6)] == [10, 10, 3, 3] or usual_epochs(10) > 3


def test_every_row_comes_once_in_an_epoch():
    lengths = np.random.default_rng(0).integers(2, 40, 103)
    some = list(_batches(lengths, 8, 13, np.random.default_rng(1)))
    assert sorted(np.concatenate(some).tolist()) == list(range(103))


def test_states_are_the_encoders_and_the_teacher_is_the_last_exit(original, tmp_path):
    model = with_new_exits(str(original), ExitOptions(heads="linear"))
    texts = some_texts(30, 2)
    states = record_states(model, texts, tmp_path, progress=False)
    with torch.no_grad():
        expected = model.runner().answer(texts, policy="never").logits
    np.testing.assert_allclose(states.teacher.numpy(), expected[states.rows], atol=1e-5)
    rows = np.array([3, 0, 7])
    chunk = next(iter(model.runner().chunks(texts, progress=False)))
    places = np.array([int(np.flatnonzero(chunk.order == states.rows[row])[0]) for row in rows])
    with torch.no_grad():
        every = every_exit(model.stepper, chunk.batch(chunk.order[places]))
        for head, inside, output in zip(
            [model.exits.at(point) for point in model.exits.points[:-1]], states.inside(rows), every[:-1], strict=True
        ):
            torch.testing.assert_close(head(head.features(inside)), output.logits, atol=5e-2, rtol=5e-2)  # in half


def test_heads_learn_what_the_last_exit_answers(original, tmp_path):
    model = with_new_exits(str(original), ExitOptions(heads="attention"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = record_states(model, some_texts(500), tmp_path, progress=False)
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    losses = []
    epochs = imitate(heads, states, SINGLE_LABEL, ImitationOptions(epochs=4), lambda share, loss: losses.append(loss))
    assert epochs == pytest.approx(4, abs=0.1) and np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    moved = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert moved and all(name.startswith(("exits.1.", "exits.2.", "exits.3.")) for name in moved)


def test_a_model_cut_to_some_exits_answers_there_as_before(original):
    model = with_new_exits(str(original), ExitOptions(heads="linear"))
    small, batch = cut_to(model, [2, 4]), random_batch(5, 1)
    with torch.no_grad():
        all_, few = (every_exit(one.stepper, Batch.of_tensors(**batch)) for one in (model, small))
    torch.testing.assert_close(few[0].logits, all_[1].logits)
    torch.testing.assert_close(few[1].logits, all_[3].logits)


def test_what_cannot_be_imitated_is_refused(original, tmp_path):
    with pytest.raises(BadModel, match="no classification head"):
        with_new_exits(str(save_encoder("bert", tmp_path / "encoder")), ExitOptions(heads="linear"))
    with pytest.raises(BadValue, match="One pooler for all exits"):
        with_new_exits(str(original), ExitOptions(heads="shared"))
    with pytest.raises(BadValue, match="leave no early one"):
        with_new_exits(str(original), ExitOptions(exits=[4], heads="linear"))


def test_another_models_classes_are_matched_by_name(original, tmp_path):
    model = AdaptiveModel.from_backbone(original)
    config = AdaptiveModel.from_backbone(original).config
    config.id2label = {0: "Class 1", 1: "CLASS 0"}
    texts = some_texts(12, 4)
    ours = model.runner().answer(texts, policy="never").logits
    theirs, _ = logits_of_model(str(original), config, texts)
    np.testing.assert_allclose(theirs, ours[:, ::-1], atol=1e-5)
    config.id2label = {0: "x", 1: "y"}
    with pytest.raises(BadModel, match="answers with class 0, class 1, and this model with x, y"):
        logits_of_model(str(original), config, texts)
    assert called(str(original)) == "original" and called("org/name") == "name"
