"""Invariants of early exits as property tests: over families, policies, batch sizes, lengths and orders.

Compaction and trimming change the last digits of floats, so thresholds are placed in gaps between the rows' scores;
exit layers are then compared exactly, logits within a tolerance.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp import AdaptiveModel, policies
from offramp.answers import MULTI_LABEL
from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput
from offramp.policies import Policy
from tests.tiny import FAMILY_NAMES, amplify_weights, random_batch

CLOSE = {"atol": 5e-5, "rtol": 1e-4}
VARIANTS = {
    "all": {},
    "some": {"exits": [2, 4]},
    "poolers": {"pooling": "first"},
    "shared": {"heads": "shared", "exits": [1, 3, 4]},
    "family": {"heads": "family"},
    "attention": {"heads": "attention", "queries": 3, "query_width": 8},
    "multi-label": {"problem_type": "multi_label_classification"},
    "regression": {"problem_type": "regression", "num_labels": 1},
    "lte": {"lte": True},
}


@cache
def tiny(encoder: Path, variant: str = "all") -> AdaptiveModel:
    """Return a tiny model, cached per family and variant."""
    model = AdaptiveModel.from_backbone(encoder, **{"num_labels": 3} | VARIANTS[variant])
    amplify_weights(model.exits, seed=1, scale=20.0)
    return model.eval()


def in_a_gap(values: torch.Tensor, share: float) -> float:
    """Return a number near the `share` quantile that is as far as possible from all values."""
    ordered = values.flatten().unique()  # ascending
    if len(ordered) < 2:
        return float(ordered[0]) * 0.9
    low = int(share * (len(ordered) - 2))
    near = range(max(0, low - 3), min(len(ordered) - 1, low + 4))
    best = max(near, key=lambda i: float(ordered[i + 1] - ordered[i]))
    return float(ordered[best] + ordered[best + 1]) / 2


def policies_for(model: AdaptiveModel, batch: dict[str, torch.Tensor], share: float) -> list[Policy]:
    """Return every policy that the model supports, with thresholds in gaps."""
    with torch.no_grad():
        out = model(**batch, output_exits=True)
    early, answer_type = out.exit_logits[:, :-1], model.config.answer_type
    layers = [spec.layer for spec in model.config.exit_specs]
    candidates: list[Policy] = [policies.Never(), policies.Layer(layers[0]), policies.Layer(layers[-1])]
    if answer_type.needs_tolerance:
        steps = (out.exit_logits[:, 1:] - out.exit_logits[:, :-1]).abs()
        candidates += [policies.Patience(1, in_a_gap(steps, share)), policies.Patience(2, in_a_gap(steps, 0.8))]
    else:
        entropies = answer_type.entropy(early)
        probabilities = early.sigmoid() if answer_type is MULTI_LABEL else early.softmax(-1)
        if answer_type is MULTI_LABEL:
            confidence = torch.maximum(probabilities, 1 - probabilities).amin(-1)
            margin = (2 * probabilities - 1).abs().amin(-1)
        else:
            best = probabilities.topk(2, -1).values
            confidence, margin = best[..., 0], best[..., 0] - best[..., 1]
        thresholds = tuple(in_a_gap(entropies[:, i], share) for i in range(early.shape[1]))
        candidates += [
            policies.Entropy(in_a_gap(entropies, share)),
            policies.Entropy(thresholds),
            policies.Confidence(in_a_gap(confidence, 1 - share)),
            policies.Margin(in_a_gap(margin, 1 - share)),
            policies.Patience(1),
            policies.Patience(2),
            policies.PatienceConfidence(2, in_a_gap(entropies, share)),
        ]
        if answer_type.is_single_class:
            candidates += [policies.Vote(2), policies.Vote(0.9, 1.0)]
    candidates.append(risk_policy(model, out.exit_logits, share))
    if out.exit_uncertainty is not None:
        candidates.append(policies.Learned(in_a_gap(out.exit_uncertainty[:, :-1], share)))
    return candidates


def risk_policy(model: AdaptiveModel, logits: torch.Tensor, share: float) -> Policy:
    """Return a risk model with different parameters at every exit, its threshold in a gap between the rows' risks."""
    parameters = [tuple(values) for values in torch.linspace(-0.5, 0.7, 2 * (logits.shape[1] - 1)).view(2, -1).tolist()]
    memory, risks = None, []
    for index, (offset, slope) in enumerate(zip(*parameters, strict=True)):
        output = ExitOutput(index + 1, index + 1, model.config.answer_type, logits[:, index])
        log_odds, memory = output.answer_type.log_odds(output.logits.float(), memory)
        risks.append(torch.sigmoid(offset - slope * log_odds))
    return policies.RiskModel(in_a_gap(torch.stack(risks), share), *parameters)


def rows_of(batch: dict[str, torch.Tensor], rows: torch.Tensor | slice | list[int]) -> dict[str, torch.Tensor]:
    return {key: value[rows] for key, value in batch.items()}


def predict(model: AdaptiveModel, batch: dict[str, torch.Tensor], policy: Policy):
    with torch.no_grad():
        return model(**batch, policy=policy)


# every family, every variant, and every family with one more variant
PAIRS = [(family, "all") for family in FAMILY_NAMES] + [("bert", name) for name in VARIANTS if name != "all"]
PAIRS += zip((name for name in FAMILY_NAMES if name != "bert"), [*VARIANTS][::-1], strict=True)
PAIRS = [*dict.fromkeys([*PAIRS, ("modernbert", "poolers"), ("modernbert", "attention")])]
seeds = st.integers(0, 10_000)
few_examples = settings(max_examples=3, deadline=None, derandomize=True)  # each with all policies


@pytest.mark.parametrize(
    ("family", "variant"),
    [(family, "all") for family in FAMILY_NAMES]
    + [("bert", name) for name in VARIANTS if name != "all"]
    + [("modernbert", "poolers"), ("modernbert", "attention")],
)
@given(seed=seeds, rows=st.integers(2, 9), share=st.floats(0.1, 0.9), data=st.data())
@few_examples
def test_predictions_do_not_depend_on_the_batch(encoders, family, variant, seed, rows, share, data):
    model = tiny(encoders[family], variant)
    batch = random_batch(rows, seed)
    order = torch.tensor(data.draw(st.permutations(range(rows)), label="order"))
    count = data.draw(st.integers(1, rows), label="count")
    pad = data.draw(st.integers(0, 5), label="more padding")
    wider = {key: torch.nn.functional.pad(value, (0, pad)) for key, value in batch.items()}
    for policy in policies_for(model, batch, share):
        full = predict(model, batch, policy)
        alone = [predict(model, rows_of(batch, [row]), policy) for row in range(rows)]
        assert full.exit_layer.tolist() == [int(output.exit_layer) for output in alone], policy
        torch.testing.assert_close(full.logits, torch.cat([output.logits for output in alone]), **CLOSE)
        for other, indices in (
            (predict(model, rows_of(batch, order), policy), order),
            (predict(model, wider, policy), torch.arange(rows)),
            (predict(model, rows_of(batch, slice(0, count)), policy), torch.arange(count)),
        ):
            assert torch.equal(other.exit_layer, full.exit_layer[indices]), policy
            torch.testing.assert_close(other.logits, full.logits[indices], **CLOSE)


@pytest.mark.parametrize(("family", "variant"), PAIRS)
@given(seed=seeds, rows=st.integers(1, 9), share=st.floats(0.1, 0.9))
@few_examples
def test_early_exits_return_the_logits_of_their_exit(encoders, family, variant, seed, rows, share):
    model = tiny(encoders[family], variant)
    batch = random_batch(rows, seed)
    with torch.no_grad():
        exit_logits = model(**batch, output_exits=True).exit_logits  # (rows, exits, classes)
    indices_by_layer = {spec.layer: index for index, spec in enumerate(model.config.exit_specs)}
    layers = set()
    for policy in policies_for(model, batch, share):
        out = predict(model, batch, policy)
        index = torch.tensor([indices_by_layer[int(layer)] for layer in out.exit_layer])
        torch.testing.assert_close(out.logits, exit_logits[torch.arange(rows), index], **CLOSE)
        # the same policy makes the same decisions on the recorded outputs
        with torch.no_grad():
            replayed = model(**batch, policy=policy, output_exits=True)
        assert torch.equal(replayed.exit_layer, out.exit_layer), policy
        layers |= set(out.exit_layer.tolist())
    assert len(layers) > 1


@pytest.mark.parametrize(("family", "variant"), PAIRS)
def test_a_saved_model_is_loaded_unchanged(encoders, family, variant, tmp_path):
    model = tiny(encoders[family], variant)
    batch = random_batch(5, seed=11)
    policy = policies_for(model, batch, 0.5)[-1]
    model.config.policy = policy.to_dict()
    model.save_pretrained(tmp_path / "saved")
    model.config.policy = policies.Never().to_dict()
    again = AdaptiveModel.from_pretrained(tmp_path / "saved")
    assert not again.training
    assert again.config.exit_policy == policy
    assert again.config.exit_specs == model.config.exit_specs
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    expected, loaded = predict(model, batch, policy), predict(again, batch, None)
    torch.testing.assert_close(expected.logits, loaded.logits, atol=1e-6, rtol=1e-6)  # memory alignment may differ
    assert torch.equal(expected.exit_layer, loaded.exit_layer)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_max_layers_stops_at_the_deepest_exit_within_it(encoders, family):
    model = tiny(encoders[family], "some")
    batch = random_batch(4, seed=5)
    with torch.no_grad():
        exit_logits = model(**batch, output_exits=True).exit_logits
        out = model(**batch, policy="never", max_layers=3)
    assert out.exit_layer.tolist() == [2] * 4
    torch.testing.assert_close(out.logits, exit_logits[:, 0], **CLOSE)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_full_model_accepts_boolean_masks(encoders, family):
    """The baseline of timings: the encoder's own forward pass, with the Boolean mask of batches."""
    model = tiny(encoders[family])
    batch = random_batch(5, 3, types=False)
    batch["attention_mask"] = batch["attention_mask"].bool()
    with torch.inference_mode():
        logits = model.stepper.full_model(Batch.from_tensors(**batch))
        expected = model(**batch, policy="never").logits
    torch.testing.assert_close(logits, expected, **CLOSE)
