"""Interactions in attention heads: tokens of a row are compared; rows stay independent, and exports agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import offramp
from offramp import AdaptiveModel
from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.errors import BadModel
from offramp.evaluation.traces.operations import count_operations
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import export
from offramp.model.exit_spec import INTERACTION_LAYERS, ExitSpec
from offramp.model.exits import INTERACTION_WIDTH, Interaction
from offramp.policies import parse
from tests.model.test_convolution import CLOSE, batch_for, convolutional, logits_of_all_exits, texts

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("bert", "mpnet", "deberta-v2")


def interacting(family: str, folder, **options) -> AdaptiveModel:
    """Return a model with exits on layers 0, 1, 2 and 4; the first ones compare tokens by 3 projections."""
    return convolutional(family, folder, exits=[0, 1, 2, 4], interaction=3, **options)


def test_a_token_is_compared_with_all_other_real_tokens():
    torch.manual_seed(0)
    layer, hidden = Interaction(6, 2), torch.randn(1, 5, 6)
    real = torch.tensor([[[0.25, 0.25, 0.25, 0.25, 0.0]]])
    similarities = layer(hidden, real)
    assert similarities.shape == (1, 5, 2)
    left, right = layer.left(hidden[0]).view(5, 2, -1), layer.right(hidden[0]).view(5, 2, -1)
    for token in range(4):
        others = [other for other in range(4) if other != token]
        products = (left[token] * right[others]).sum(-1) / INTERACTION_WIDTH**0.5  # (others, projections)
        torch.testing.assert_close(similarities[0, token], products.amax(0))
    hidden[0, 3] = hidden[0, 1]  # a word that comes again
    repeated = layer(hidden, real)[0, 1]
    torch.testing.assert_close(repeated, (layer.left(hidden[0, 1]).view(2, -1) ** 2).sum(-1) / INTERACTION_WIDTH**0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_depend_on_its_neighbours_or_padding(family, tmp_path):
    model, batch = interacting(family, tmp_path / "encoder"), batch_for(family, 9, 3)
    together = logits_of_all_exits(model, batch)
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        torch.testing.assert_close(together[:, row], logits_of_all_exits(model, alone)[:, 0], **CLOSE)
    longer = {name: nn.functional.pad(value, (0, 7)) for name, value in batch.items()}
    torch.testing.assert_close(logits_of_all_exits(model, longer), together, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_exports_and_loaded_models_equal_torch(family, tmp_path):
    pytest.importorskip("onnxruntime")
    interacting(family, tmp_path / "encoder").save_pretrained(tmp_path / "model")
    model = AdaptiveModel.from_pretrained(tmp_path / "model").eval()
    assert [spec.interaction for spec in model.config.exit_specs] == [3, 3, 3, 3 if INTERACTION_LAYERS >= 4 else 0]
    assert export(model, Texts(texts(40, 0), texts(60, 1)), ExportOptions(int8="none")).checked["worst"] < 1e-3
    stepper = offramp.load(tmp_path / "model", backend="onnx", threads=1).stepper
    for rows in (1, 5, 16):
        batch = Batch.from_tensors(**batch_for(family, rows, rows))
        for policy in ("layer:0", "layer:2", "never"):
            with torch.inference_mode():
                expected, actual = (run(each, batch, parse(policy)) for each in (model.stepper, stepper))
            torch.testing.assert_close(actual.logits, expected.logits, atol=2e-4, rtol=1e-4)


def test_its_operations_are_counted(tmp_path):
    lengths = np.array([8, 20])
    _, without = count_operations(convolutional("bert", tmp_path / "a", exits=[0, 4]).config).at(lengths)
    _, with_3 = count_operations(interacting("bert", tmp_path / "b").config).at(lengths)
    width = 3 * INTERACTION_WIDTH  # two projections of 16 channels, the similarities, 3 more channels for the queries
    added = 2 * (2 * 16 * width * lengths + width * lengths**2 + 3 * 4 * lengths + 3 * 64 * lengths)
    np.testing.assert_allclose(with_3[:, 0] - without[:, 0], added)


def test_only_attention_heads_have_one():
    with pytest.raises(BadModel, match="only attention heads support one"):
        ExitSpec(2, "linear", interaction=3)
    assert "interaction" not in ExitSpec(2, "attention", "queries").to_dict()
    assert ExitSpec(2, "attention", "queries", interaction=3).to_dict()["interaction"] == 3
