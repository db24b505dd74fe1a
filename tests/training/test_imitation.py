"""Heads that imitate a frozen model, trained on its states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offramp import AdaptiveModel
from offramp.answers import SINGLE_LABEL
from offramp.core.batch import Batch
from offramp.core.loop import run_all_exits
from offramp.errors import BadModel, BadValue
from offramp.model.attach import ExitOptions
from offramp.training.imitation import states as states_module
from offramp.training.imitation.heads import ImitationOptions, _batches, default_epochs, imitate
from offramp.training.imitation.new_exits import keep_exits, load_with_new_exits
from offramp.training.imitation.states import record_states
from offramp.training.imitation.teacher import full_model_logits, short_name
from tests.adaptation.test_adapt import classifier, random_texts
from tests.tiny import random_batch, save_encoder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return classifier("bert", tmp_path_factory.mktemp("models") / "original", 2)


def test_fewer_texts_get_more_epochs():
    assert [default_epochs(rows) for rows in (10, 3000, 33_600, 10**6)] == [24, 24, 4, 3]


def test_long_texts_get_fewer_epochs():
    assert [default_epochs(10_000, tokens) for tokens in (5, 16, 64, 512)] == [13, 13, 7, 3]


def test_every_row_occurs_once_in_an_epoch():
    lengths = np.random.default_rng(0).integers(2, 40, 103)
    batches = list(_batches(lengths, 8, 13, np.random.default_rng(1)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(103))


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_states_are_the_encoders_and_the_teacher_is_the_last_exit(bfloat16, original, tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "half_precision", lambda: {"bfloat16": bfloat16})  # whatever this CPU has
    model = load_with_new_exits(str(original), ExitOptions(heads="linear"))
    texts = random_texts(30, 2)
    states = record_states(model, texts, tmp_path)
    assert next(model.parameters()).dtype is torch.float32  # the model itself stays as it is
    with torch.no_grad():
        expected = model.runner().answer(texts, policy="never").logits
    np.testing.assert_allclose(states.teacher.numpy(), expected[states.rows], atol=5e-2 if bfloat16 else 1e-5)
    rows = np.array([3, 0, 7])
    chunk = next(iter(model.runner().chunks(texts, progress=False)))
    positions = np.array([int(np.flatnonzero(chunk.order == states.rows[row])[0]) for row in rows])
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    with torch.no_grad():
        outputs = run_all_exits(model.stepper, chunk.batch(chunk.order[positions]))
        for head, state, output in zip(heads, states.encoder_states(rows), outputs[:-1], strict=True):
            # states are stored in half precision
            torch.testing.assert_close(head(head.features(state)), output.logits, atol=5e-2, rtol=5e-2)


def test_heads_learn_the_last_exits_predictions(original, tmp_path):
    model = load_with_new_exits(str(original), ExitOptions(heads="attention"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = record_states(model, random_texts(500), tmp_path)
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    losses = []
    epochs = imitate(heads, states, SINGLE_LABEL, ImitationOptions(epochs=4), losses.append)
    assert epochs == pytest.approx(4, abs=0.1) and np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    moved = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert moved and all(name.startswith(("exits.1.", "exits.2.", "exits.3.")) for name in moved)


def test_a_model_with_fewer_exits_has_the_same_outputs_at_these_exits(original):
    model = load_with_new_exits(str(original), ExitOptions(heads="linear"))
    small, batch = keep_exits(model, [2, 4]), random_batch(5, 1)
    with torch.no_grad():
        all_exits, few_exits = (
            run_all_exits(network.stepper, Batch.from_tensors(**batch)) for network in (model, small)
        )
    torch.testing.assert_close(few_exits[0].logits, all_exits[1].logits)
    torch.testing.assert_close(few_exits[1].logits, all_exits[3].logits)


def test_what_cannot_be_imitated_is_refused(original, tmp_path):
    with pytest.raises(BadModel, match="no classification head"):
        load_with_new_exits(str(save_encoder("bert", tmp_path / "encoder")), ExitOptions(heads="linear"))
    with pytest.raises(BadValue, match="`heads='shared'` cannot be trained on a frozen model"):
        load_with_new_exits(str(original), ExitOptions(heads="shared"))
    with pytest.raises(BadValue, match="contains no early exit"):
        load_with_new_exits(str(original), ExitOptions(exits=[4], heads="linear"))


def test_another_models_classes_are_matched_by_name(original, tmp_path):
    model = AdaptiveModel.from_backbone(original)
    config = AdaptiveModel.from_backbone(original).config
    config.id2label = {0: "Class 1", 1: "CLASS 0"}
    texts = random_texts(12, 4)
    expected = model.runner().answer(texts, policy="never").logits
    logits, _ = full_model_logits(str(original), config, texts)
    np.testing.assert_allclose(logits, expected[:, ::-1], atol=1e-5)
    config.id2label = {0: "x", 1: "y"}
    with pytest.raises(BadModel, match="predicts class 0, class 1, but this model predicts x, y"):
        full_model_logits(str(original), config, texts)
    assert short_name(str(original)) == "original" and short_name("org/name") == "name"
