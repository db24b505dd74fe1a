"""Encoder states that an export computes, instead of torch."""

from __future__ import annotations

import numpy as np
import pytest

from offramp.adaptation import encoder_export
from offramp.adaptation.encoder_export import int8_runner
from offramp.model.attach import ExitOptions
from offramp.training.imitation import states as states_module
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import record_states
from tests.adaptation.test_adapt import classifier, random_texts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = classifier("bert", tmp_path_factory.mktemp("models") / "original", 2)
    return load_with_new_exits(str(folder), ExitOptions("auto", "attention", convolution=8))


@pytest.mark.parametrize(("int8", "tolerance"), [("none", 2e-3), ("static", 0.5)])
def test_an_export_computes_the_states_of_torch(int8, tolerance, model, tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "half_precision", lambda: {"bfloat16": False})  # torch in float32
    texts = random_texts(60, 2)
    exported = int8_runner(model, "onnx", int8, texts, texts)
    assert exported is not None and exported.dtype == {"none": "float32", "static": "int8-static"}[int8]
    both = []
    for name, runner in (("torch", None), ("exported", exported)):
        (tmp_path / name).mkdir()
        both.append(record_states(model, texts, tmp_path / name, quiet=True, exported=runner))
    expected, states = both
    np.testing.assert_array_equal(states.lengths, expected.lengths)
    np.testing.assert_array_equal(states.rows, expected.rows)
    assert (
        states.values.shape
        == expected.values.shape
        == (expected.lengths.sum(), len(model.exits.points) - 1, model.config.hidden_size)
    )
    np.testing.assert_allclose(states.teacher.numpy(), expected.teacher.numpy(), atol=tolerance)
    np.testing.assert_allclose(np.array(states.values), np.array(expected.values), atol=4 * tolerance)


def test_an_export_that_changes_predictions_is_not_used(model, monkeypatch):
    monkeypatch.setattr(encoder_export, "MIN_AGREEMENT", 1.01)
    assert int8_runner(model, "onnx", "static", random_texts(20, 2), random_texts(20, 3)) is None
