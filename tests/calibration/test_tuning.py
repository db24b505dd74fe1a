"""Which exits to keep: sets of them, each with its best threshold within the risk, priced in measured seconds."""

from __future__ import annotations

import numpy as np
import pytest

from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.choosing import TuneOptions, at_more_risk, candidates
from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.search import search
from offramp.calibration.tuning.threshold_grids import TUNABLE, threshold_grid
from offramp.evaluation.traces.trace import Trace

ROWS = 400


def trace_of(errors: tuple[float, ...], seed: int = 0) -> Trace:
    """Two classes; exit i answers otherwise than the last one for a share of the rows, and is unsure of these."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, ROWS)
    logits = np.zeros((ROWS, len(errors) + 1, 2), np.float32)
    for place, share in enumerate((*errors, 0.0)):
        wrong = np.arange(ROWS) < round(share * ROWS)
        rng.shuffle(wrong)
        sure = np.where(wrong, 0.3, 3.0) + rng.random(ROWS) * 0.2
        logits[np.arange(ROWS), place, np.where(wrong, 1 - truth, truth)] = sure
    layers = list(range(1, len(errors) + 2))
    model = {"problem": "single_label_classification", "layers": layers, "depth": layers[-1], "faithful": False}
    nothing = np.ones((ROWS, len(layers)))
    about = {"model": model | {"labels": ["a", "b"]}}
    return Trace(about, logits, nothing, nothing, np.full(ROWS, 9), np.arange(ROWS))


def costs(layers: int, cutting: float = 0.0, asking: float = 0.0) -> Costs:
    rows = np.array([1, 32])
    each = np.tile(np.array([1.0, 32.0]), (layers, 1))
    return Costs(rows, each, np.full(2, cutting), np.full(2, asking))


def test_the_cheapest_set_within_the_risk_comes_first():
    trace, guarantee = trace_of((0.2, 0.1, 0.05)), Guarantee("disagreement", 0.02)
    losses = Risk(guarantee, trace).at_every_exit()
    turn = threshold_grid("confidence", trace, losses)
    found = search(trace, turn, costs(4), 32, losses, guarantee.risk, [0, 1, 2])
    assert found == sorted(found, key=lambda one: one.seconds)
    assert all(one.risk <= 0.02 and one.places[-1] == 3 for one in found)
    assert len({one.places for one in found}) == 7  # every set of three early exits but the empty one
    assert found[0].places[0] == 0  # whoever may exit after one layer does


def test_dear_decisions_make_fewer_exits_pay():
    trace, guarantee, options = (
        trace_of((0.2, 0.1, 0.05)),
        Guarantee("disagreement", 0.02),
        TuneOptions(policy="entropy"),
    )
    cheap, dear = (candidates(trace, guarantee, costs(4, asking=price), options, [0, 1, 2])[0] for price in (0.0, 9.0))
    assert len(dear.places) < len(cheap.places)


def test_exits_that_may_not_be_kept_are_in_no_set():
    trace, guarantee = trace_of((0.2, 0.1)), Guarantee("disagreement", 0.05)
    for one in candidates(trace, guarantee, costs(3), TuneOptions(policy="margin"), [1]):
        assert one.places == (1, 2)


def test_where_nothing_is_saved_the_least_risk_that_would_do_is_named():
    trace = trace_of((0.04,))
    flat = Trace(
        trace.about, np.sign(trace.logits) * 1.0, *(getattr(trace, n) for n in ("spent", "heads", "lengths", "hashes"))
    )
    options, guarantee = TuneOptions(policy="entropy"), Guarantee("disagreement", 0.01)
    assert candidates(flat, guarantee, costs(2), options, [0]) == []
    assert at_more_risk(flat, guarantee, costs(2), options, [0])[0].startswith("At 5 % it could be: exits on 1, 2")


@pytest.mark.parametrize("name", TUNABLE)
def test_a_knob_is_the_policy_itself(name):
    """What the search thinks of rows is what the policy decides."""
    trace, guarantee = trace_of((0.2, 0.1)), Guarantee("disagreement", 0.05)
    losses = Risk(guarantee, trace).at_every_exit()
    policies, exits = threshold_grid(name, trace, losses)((0, 1, 2))
    for place in (3, len(policies) // 2, -3):
        replayed = trace.replay(policies[place])
        first = np.where(exits[place].any(1), exits[place].argmax(1) + 1, 3)
        assert (replayed.exit == first).all()
