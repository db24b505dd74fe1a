"""With the policy `never`, predictions equal those of the unmodified Hugging Face model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification

from offramp import AdaptiveModel
from offramp.encoders import FAMILIES
from tests.tiny import FAMILY_NAMES, LAYERS, random_batch, save_classifier

NAMES = [name for name in FAMILY_NAMES if name != "elasticbert"]
WITH_TOKEN_TYPES = {"bert", "albert", "electra", "deberta-v2"}
NO_SDPA = {"deberta-v2", "mpnet"}  # families without sdpa


@cache
def load_both(folder: Path, attention: str | None):
    """Load a classifier with transformers and with offramp."""
    options = {} if attention is None else {"attn_implementation": attention}
    original = AutoModelForSequenceClassification.from_pretrained(folder, **options).eval()
    adaptive = AdaptiveModel.from_backbone(folder, **options)
    assert adaptive.backbone.config._attn_implementation == original.config._attn_implementation
    return original, adaptive


def test_every_family_is_tested():
    assert set(FAMILY_NAMES) == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", [None, "eager", "sdpa"])
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 9), longest=st.integers(2, 30))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_never_equals_the_original_model(name, attention, seed, rows, longest, folders):
    if attention == "sdpa" and name in NO_SDPA:
        attention = None
    original, adaptive = load_both(folders[name], attention)
    batch = random_batch(rows, seed, longest, types=name in WITH_TOKEN_TYPES)
    with torch.no_grad():
        expected = original(**batch).logits
        out = adaptive(**batch, policy="never")
    torch.testing.assert_close(out.logits, expected, atol=3e-5, rtol=1e-4)
    assert out.exit_layer.tolist() == [LAYERS] * rows
    assert adaptive.config.labels == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bert", {"num_hidden_layers": 24, "hidden_size": 32, "num_attention_heads": 8}),
        ("albert", {"num_hidden_groups": 1, "inner_group_num": 1}),
        ("electra", {"embedding_size": 16}),
        ("deberta-v2", {"conv_kernel_size": 0, "relative_attention": False, "position_biased_input": True}),
        ("deberta-v2", {"conv_kernel_size": 0, "share_att_key": False, "position_buckets": -1}),
        ("modernbert", {"classifier_pooling": "cls", "local_attention": 40}),
    ],
)
def test_never_equals_the_original_model_for_other_configs(name, changes, tmp_path):
    original, adaptive = load_both(save_classifier(name, tmp_path / name, **changes), None)
    batch = random_batch(6, seed=5, longest=20, types=name in WITH_TOKEN_TYPES)
    with torch.no_grad():
        out, expected = adaptive(**batch, policy="never"), original(**batch)
    torch.testing.assert_close(out.logits, expected.logits, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_padding_needs_no_mask(name, folders):
    original, adaptive = load_both(folders[name], None)
    ids = random_batch(4, seed=1)["input_ids"].clamp_min(4)
    with torch.no_grad():
        torch.testing.assert_close(adaptive(ids, policy="never").logits, original(ids).logits, atol=3e-5, rtol=1e-4)
        torch.testing.assert_close(
            adaptive(ids, torch.ones_like(ids), policy="never").logits, original(ids).logits, atol=3e-5, rtol=1e-4
        )
