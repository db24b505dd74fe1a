"""The design's equalities 2 to 4 as properties: over families, policies, batch sizes, lengths and orders.

Compaction and re-trimming shift floats in the last digits, so thresholds are put into the gaps between the
rows' own scores; exit layers are then compared exactly, logits within a tolerance.
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
from tests.tiny import FAMILY_NAMES, livelier, random_batch

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
    """ExportedGraphs once for all the tests of a family and a kind of exits."""
    model = AdaptiveModel.from_backbone(encoder, **{"num_labels": 3} | VARIANTS[variant])
    livelier(model.exits, seed=1, scale=20.0)
    return model.eval()


def in_a_gap(values: torch.Tensor, share: float) -> float:
    """A number that splits the values about there, as far from its neighbours as it can be."""
    ordered = values.flatten().unique()  # ascending
    if len(ordered) < 2:
        return float(ordered[0]) * 0.9
    low = int(share * (len(ordered) - 2))
    near = range(max(0, low - 3), min(len(ordered) - 1, low + 4))
    best = max(near, key=lambda i: float(ordered[i + 1] - ordered[i]))
    return float(ordered[best] + ordered[best + 1]) / 2


def policies_for(model: AdaptiveModel, batch: dict[str, torch.Tensor], share: float) -> list[Policy]:
    """One of each policy that the model can serve, with thresholds in gaps."""
    with torch.no_grad():
        out = model(**batch, output_exits=True)
    early, answer_type = out.exit_logits[:, :-1], model.config.answer_type
    layers = [spec.layer for spec in model.config.exit_specs]
    chosen: list[Policy] = [policies.Never(), policies.Layer(layers[0]), policies.Layer(layers[-1])]
    if answer_type.needs_tolerance:
        steps = (out.exit_logits[:, 1:] - out.exit_logits[:, :-1]).abs()
        chosen += [policies.Patience(1, in_a_gap(steps, share)), policies.Patience(2, in_a_gap(steps, 0.8))]
    else:
        uncertain = answer_type.entropy(early)
        chances = early.sigmoid() if answer_type is MULTI_LABEL else early.softmax(-1)
        if answer_type is MULTI_LABEL:
            sure, apart = torch.maximum(chances, 1 - chances).amin(-1), (2 * chances - 1).abs().amin(-1)
        else:
            best = chances.topk(2, -1).values
            sure, apart = best[..., 0], best[..., 0] - best[..., 1]
        each = tuple(in_a_gap(uncertain[:, i], share) for i in range(early.shape[1]))
        chosen += [
            policies.Entropy(in_a_gap(uncertain, share)),
            policies.Entropy(each),
            policies.Confidence(in_a_gap(sure, 1 - share)),
            policies.Margin(in_a_gap(apart, 1 - share)),
            policies.Patience(1),
            policies.Patience(2),
            policies.PatienceConfidence(2, in_a_gap(uncertain, share)),
        ]
        if answer_type.is_one_class:
            chosen += [policies.Vote(2), policies.Vote(0.9, 1.0)]
    chosen.append(judged(model, out.exit_logits, share))
    if out.exit_uncertainty is not None:
        chosen.append(policies.Learned(in_a_gap(out.exit_uncertainty[:, :-1], share)))
    return chosen


def judged(model: AdaptiveModel, logits: torch.Tensor, share: float) -> Policy:
    """A judge of another opinion at every exit, its threshold in a gap between the rows' risks."""
    judge = [tuple(values) for values in torch.linspace(-0.5, 0.7, 2 * (logits.shape[1] - 1)).view(2, -1).tolist()]
    memory, risks = None, []
    for place, (offset, slope) in enumerate(zip(*judge, strict=True)):
        said = ExitOutput(place + 1, place + 1, model.config.answer_type, logits[:, place])
        sure, memory = said.answer_type.log_odds(said.logits.float(), memory)
        risks.append(torch.sigmoid(offset - slope * sure))
    return policies.RiskModel(in_a_gap(torch.stack(risks), share), *judge)


def rows_of(batch: dict[str, torch.Tensor], rows: torch.Tensor | slice | list[int]) -> dict[str, torch.Tensor]:
    return {key: value[rows] for key, value in batch.items()}


def answered(model: AdaptiveModel, batch: dict[str, torch.Tensor], policy: Policy):
    with torch.no_grad():
        return model(**batch, policy=policy)


seeds = st.integers(0, 10_000)
few = settings(max_examples=3, deadline=None, derandomize=True)  # each with all policies, on every family and kind


@pytest.mark.parametrize(
    ("family", "variant"),
    [(family, "all") for family in FAMILY_NAMES]
    + [("bert", name) for name in VARIANTS if name != "all"]
    + [("modernbert", "poolers"), ("modernbert", "attention")],
)
@given(seed=seeds, rows=st.integers(2, 9), share=st.floats(0.1, 0.9), data=st.data())
@few
def test_a_batch_is_its_rows(encoders, family, variant, seed, rows, share, data):
    model = tiny(encoders[family], variant)
    batch = random_batch(rows, seed)
    order = torch.tensor(data.draw(st.permutations(range(rows)), label="order"))
    cut = data.draw(st.integers(1, rows), label="cut")
    pad = data.draw(st.integers(0, 5), label="more padding")
    wider = {key: torch.nn.functional.pad(value, (0, pad)) for key, value in batch.items()}
    for policy in policies_for(model, batch, share):
        whole = answered(model, batch, policy)
        alone = [answered(model, rows_of(batch, [row]), policy) for row in range(rows)]
        assert whole.exit_layer.tolist() == [int(one.exit_layer) for one in alone], policy
        torch.testing.assert_close(whole.logits, torch.cat([one.logits for one in alone]), **CLOSE)
        for other, back in (
            (answered(model, rows_of(batch, order), policy), order),
            (answered(model, wider, policy), torch.arange(rows)),
            (answered(model, rows_of(batch, slice(0, cut)), policy), torch.arange(cut)),
        ):
            assert torch.equal(other.exit_layer, whole.exit_layer[back]), policy
            torch.testing.assert_close(other.logits, whole.logits[back], **CLOSE)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
@given(seed=seeds, rows=st.integers(1, 9), share=st.floats(0.1, 0.9))
@few
def test_leaving_changes_nothing(encoders, family, variant, seed, rows, share):
    model = tiny(encoders[family], variant)
    batch = random_batch(rows, seed)
    with torch.no_grad():
        every = model(**batch, output_exits=True).exit_logits  # (rows, exits, classes)
    numbers = {spec.layer: index for index, spec in enumerate(model.config.exit_specs)}
    left_somewhere_else = set()
    for policy in policies_for(model, batch, share):
        out = answered(model, batch, policy)
        index = torch.tensor([numbers[int(layer)] for layer in out.exit_layer])
        torch.testing.assert_close(out.logits, every[torch.arange(rows), index], **CLOSE)
        # the same policy on the recorded answers decides alike
        with torch.no_grad():
            replayed = model(**batch, policy=policy, output_exits=True)
        assert torch.equal(replayed.exit_layer, out.exit_layer), policy
        left_somewhere_else |= set(out.exit_layer.tolist())
    assert len(left_somewhere_else) > 1


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_is_loaded(encoders, family, variant, tmp_path):
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
    expected, loaded = answered(model, batch, policy), answered(again, batch, None)
    torch.testing.assert_close(expected.logits, loaded.logits, atol=1e-6, rtol=1e-6)  # weights may be aligned otherwise
    assert torch.equal(expected.exit_layer, loaded.exit_layer)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_budget_stops_at_the_deepest_exit_that_fits(encoders, family):
    model = tiny(encoders[family], "some")
    batch = random_batch(4, seed=5)
    with torch.no_grad():
        every = model(**batch, output_exits=True).exit_logits
        out = model(**batch, policy="never", max_layers=3)
    assert out.exit_layer.tolist() == [2] * 4
    torch.testing.assert_close(out.logits, every[:, 0], **CLOSE)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_plain_encoder_takes_the_masks_that_batches_have(encoders, family):
    """What seconds are compared with: the family's own pass, with the Boolean mask of our batches."""
    model = tiny(encoders[family])
    batch = random_batch(5, 3, types=False)
    batch["attention_mask"] = batch["attention_mask"].bool()
    with torch.inference_mode():
        plain = model.stepper.plain(Batch.of_tensors(**batch))
        expected = model(**batch, policy="never").logits
    torch.testing.assert_close(plain, expected, **CLOSE)
