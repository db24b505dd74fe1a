from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offramp import policies
from offramp.answers import MULTI_LABEL as MULTI
from offramp.answers import REGRESSION
from offramp.answers import SINGLE_LABEL as SINGLE
from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec
from offramp.errors import BadValue, UnknownName
from offramp.policies import POLICIES, Entropy, Layer, Learned, Never, Patience, PatienceConfidence, Vote
from offramp.runtimes.replay import Replay

EXITS = tuple(ExitPoint(number, number) for number in (1, 2, 3, 4))


def model_spec(answer_type=SINGLE, **more) -> ModelSpec:
    return ModelSpec(answer_type, 2, EXITS, **more)


def exits_of(policy, exits, answer_type=SINGLE, uncertainty=None):
    """Return the number of the exit of each row; `exits` is a list of (rows, classes) logits."""
    outputs = [
        ExitOutput(
            number,
            number,
            answer_type,
            torch.tensor(logits).float(),
            None if uncertainty is None else uncertainty[number - 1],
        )
        for number, logits in enumerate(exits, 1)
    ]
    return run(Replay(outputs), Batch.from_groups(), policy).exit.tolist()


def certain(p: float) -> list[float]:
    """Return two logits whose larger probability is p."""
    return [math.log(p / (1 - p)), 0.0]


@given(
    arrays("float32", (3, 4), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.sampled_from([SINGLE, MULTI]),
)
def test_entropy_is_finite_and_not_negative_for_any_finite_logits(logits, answer_type):
    entropy = answer_type.entropy(torch.from_numpy(logits))
    assert torch.isfinite(entropy).all()
    assert (entropy >= 0).all()
    assert (entropy <= math.log(4) + 1e-6).all()


def test_entropy_is_in_nats():
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(3), 0.0, -1e30]])
    expected = torch.tensor([math.log(3), -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))])
    torch.testing.assert_close(SINGLE.entropy(logits), expected)
    binary = MULTI.entropy(torch.tensor([[0.0, 1e30]]))
    torch.testing.assert_close(binary, torch.tensor([math.log(2) / 2]))


def test_policies_decide_in_float32():
    """A trace stores float32, so live decisions use it too: at a threshold between two roundings they agree."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        first, second = torch.tensor([[1.1]]).to(dtype), torch.tensor([[1.35]]).to(dtype)
        difference = float((second.float() - first.float()).abs())
        for tolerance in (difference * (1 - 1e-6), difference * (1 + 1e-6)):
            live, replayed = (
                run(
                    Replay([ExitOutput(i, i, REGRESSION, z) for i, z in enumerate((a, b, b), 1)]),
                    Batch.from_groups(),
                    Patience(1, tolerance),
                )
                for a, b in ((first, second), (first.float(), second.float()))
            )
            assert live.exit.tolist() == replayed.exit.tolist() == [3 if tolerance < difference else 2]
        uncertainty = torch.tensor([0.1]).to(dtype)
        threshold = float(uncertainty.float())
        outputs = [ExitOutput(i, i, SINGLE, torch.zeros(1, 2), uncertainty) for i in (1, 2)]
        assert run(Replay(outputs), Batch.from_groups(), Learned(threshold)).exit.tolist() == [
            2
        ]  # strictly below, in float32


def test_entropy_compares_strictly_and_zero_never_exits():
    sure = [[[1e30, -1e30]]] * 4
    assert exits_of(Entropy(0.0), sure) == [4]
    assert exits_of(Entropy(1e-9), sure) == [1]
    unsure = [[[0.0, 0.0]]] * 4
    assert exits_of(Entropy(float(SINGLE.entropy(torch.zeros(1, 2)))), unsure) == [4]
    assert exits_of(Entropy(0.7), unsure) == [1]


def test_a_threshold_per_exit_is_used_at_its_exit():
    logits = [[certain(0.9)]] * 4  # entropy 0.325
    assert exits_of(Entropy((0.1, 0.1, 0.4, 0.0)), logits) == [3]
    assert exits_of(Entropy((0.1, 0.1, 0.4)), logits) == [3]  # the last exit needs no threshold
    with pytest.raises(BadValue, match="2 thresholds for 4 exits"):
        Entropy((0.1, 0.2)).check(model_spec())


def test_confidence_and_margin_reach_their_threshold():
    logits = [
        [certain(0.6), certain(0.8)],
        [certain(0.8), certain(0.9)],
        [certain(0.95), certain(0.95)],
        [[0, 0], [0, 0]],
    ]
    assert exits_of(policies.Confidence(0.79), logits) == [2, 1]
    assert exits_of(policies.Confidence(0.85), logits) == [3, 2]
    assert exits_of(policies.Margin(0.59), logits) == [2, 1]
    assert exits_of(policies.Margin(0.85), logits) == [3, 3]


def test_multi_label_waits_for_the_least_certain_label():
    logits = [[[9.0, -0.1]], [[9.0, -3.0]], [[9.0, -9.0]], [[0.0, 0.0]]]
    assert exits_of(policies.Confidence(0.9), logits, MULTI) == [2]
    assert exits_of(policies.Margin(0.99), logits, MULTI) == [3]
    assert exits_of(Patience(1), logits, MULTI) == [2]
    assert exits_of(Patience(1), [[[9.0, 1.0]], [[9.0, -1.0]], [[8.0, -2.0]], [[0.0, 0.0]]], MULTI) == [3]


def test_patience_counts_consecutive_agreements():
    a, b = [2.0, 0.0], [0.0, 2.0]
    logits = [[a, a], [a, b], [b, b], [b, b], [b, a]]
    assert exits_of(Patience(1), logits) == [2, 3]
    assert exits_of(Patience(2), logits) == [5, 4]
    assert exits_of(Patience(5), logits) == [5, 5]


def test_patience_on_a_regression_compares_consecutive_exits_strictly():
    logits = [[[1.0]], [[1.5]], [[1.75]], [[9.0]]]
    assert exits_of(Patience(1, 0.5), logits, REGRESSION) == [3]
    assert exits_of(Patience(1, 0.25), logits, REGRESSION) == [4]
    with pytest.raises(BadValue, match="needs a tolerance"):
        Patience(2).check(model_spec(REGRESSION))


def test_patience_confidence_needs_lasting_certainty_not_agreement():
    logits = [[certain(0.99)], [[0.0, 5.0]], [certain(0.99)], [certain(0.99)]]
    assert exits_of(PatienceConfidence(2, 0.1), logits) == [2]
    assert exits_of(PatienceConfidence(2, 0.1), [logits[0], [[0.0, 0.0]], logits[2], logits[3]]) == [4]


def test_vote_counts_votes_and_may_divide_by_the_number_of_exits():
    a, b = [2.0, 0.0], [0.0, 2.0]
    logits = [[a, a], [b, a], [a, a], [a, b], [a, a]]
    assert exits_of(Vote(), logits) == [4, 3]
    assert exits_of(Vote(2), logits) == [3, 2]
    assert exits_of(Vote(1.0, 1.0), logits) == [1, 1]
    assert exits_of(Vote(1.5, 0.5), logits) == [4, 3]


def test_learned_exits_below_the_threshold():
    uncertainty = [
        torch.tensor([0.5, 0.2]),
        torch.tensor([0.1, 0.1]),
        torch.tensor([0.0, 0.0]),
        torch.tensor([0.9, 0.9]),
    ]
    logits = [[[0.0, 0.0]] * 2] * 4
    assert exits_of(Learned(0.2), logits, uncertainty=uncertainty) == [2, 2]
    assert exits_of(Learned(0.3), logits, REGRESSION, uncertainty=uncertainty) == [2, 1]
    with pytest.raises(BadValue, match="LTE"):
        Learned(0.2).check(model_spec())
    Learned(0.2).check(model_spec(lte=True))


def test_layer_is_static_and_never_is_the_full_model():
    logits = [[[0.0, 0.0]]] * 4
    assert exits_of(Layer(2), logits) == [2]
    assert exits_of(Never(), logits) == [4]
    with pytest.raises(BadValue, match="Layer 7 has no exit"):
        Layer(7).check(model_spec())


@pytest.mark.parametrize(
    "written", ["entropy:0.1", "confidence:0.9", "margin:0.5", "patience-confidence:2:0.3", "vote:3"]
)
def test_a_regression_rejects_policies_that_need_classes(written):
    with pytest.raises(BadValue, match="regression"):
        policies.parse(written).check(model_spec(REGRESSION))


@pytest.mark.parametrize("policy_class", POLICIES.values(), ids=str)
def test_every_policy_can_be_written_and_parsed(policy_class):
    policy = policies.parse(policy_class.example)
    assert isinstance(policy, policy_class)
    assert policies.parse(str(policy)) == policy
    assert policies.from_dict(policy.to_dict()) == policy
    assert set(policy.to_dict()) >= {"name"}
    assert hash(policy) == hash(policies.parse(str(policy)))


def test_all_policies_are_registered():
    assert sorted(POLICIES) == [
        "confidence",
        "entropy",
        "layer",
        "learned",
        "margin",
        "never",
        "patience",
        "patience-confidence",
        "risk",
        "top-k",
        "vote",
    ]


def test_a_list_of_thresholds_can_be_parsed():
    policy = policies.parse("entropy:0.1,0.2,0.3")
    assert policy == Entropy((0.1, 0.2, 0.3))
    assert policies.from_dict(policy.to_dict()) == policy
    assert str(policy) == "entropy:0.1,0.2,0.3"


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("entropy", "needs threshold"),
        ("entropy:nan", "threshold must be finite and at least 0, got nan"),
        ("entropy:inf", "got inf"),
        ("entropy:-1", "got -1"),
        ("entropy:x", "not a policy"),
        ("entropy:0.1:0.2", "too many numbers"),
        ("entropy:0.1,nan", "threshold 2 must be finite and at least 0, got nan"),
        ("confidence:1.5", "between 0 and 1"),
        ("learned:2", "between 0 and 1"),
        ("patience:0", "between 1 and"),
        ("patience:99999999999999999999999", "between 1 and"),
        ("patience:1.5", "must be an integer"),
        ("patience:nan", "must be an integer"),
        ("patience:2:-1", "tolerance must be finite and at least 0, got -1"),
        ("layer:-1", "between 0 and"),
        ("never:1", "too many numbers"),
    ],
)
def test_invalid_numbers_are_rejected(written, fault):
    with pytest.raises(BadValue, match=fault):
        policies.parse(written)


def test_an_unknown_policy_gets_a_suggestion_and_the_list():
    with pytest.raises(UnknownName, match="Did you mean 'entropy'\\? Available: confidence, entropy"):
        policies.parse("entropie:0.2")


def test_a_threshold_can_be_replaced_if_the_policy_has_one():
    assert Entropy(0.1).with_threshold(0.3) == Entropy(0.3)
    with pytest.raises(BadValue, match="no threshold"):
        Patience(3).with_threshold(0.3)
