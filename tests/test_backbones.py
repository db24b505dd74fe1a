"""Equality 1, never = plain: with `never` the answer is the unmodified Hugging Face model's."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from offramp import AdaptiveModel
from tests.tiny import FAMILY_NAMES, LAYERS, random_batch

FAMILIES = [name for name in FAMILY_NAMES if name != "elasticbert"]
TYPED = {"bert", "albert", "electra", "deberta-v2"}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("attention", ["default", "eager"])
def test_never_is_the_plain_model(name, attention, folders):
    options = {} if attention == "default" else {"attn_implementation": "eager"}
    plain = AutoModelForSequenceClassification.from_pretrained(folders[name], **options).eval()
    ours = AdaptiveModel.from_backbone(folders[name], **options)
    ours_attention = ours.backbone.config._attn_implementation
    assert ours_attention == plain.config._attn_implementation
    batch = random_batch(7, seed=3, types=name in TYPED)
    with torch.no_grad():
        expected = plain(**batch).logits
        out = ours(**batch, policy="never")
    torch.testing.assert_close(out.logits, expected, atol=2e-5, rtol=1e-5)
    assert out.exit_layer.tolist() == [LAYERS] * 7
    assert ours.config.labels == ("class 0", "class 1", "class 2")
