"""Sets of exits and settings of the policies, quickest first: the choice itself, whatever runs the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offramp.calibration.choice import AUTO, policies_for
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.search import Candidate, search
from offramp.calibration.tuning.threshold_grids import threshold_grid
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy, RiskModel

__all__ = ["TuneOptions", "at_more_risk", "candidates", "line_of", "told", "with_risk_model_of"]

LARGER = (0.02, 0.03, 0.05, 0.1, 0.2)  # risks that are tried where the promised one is too small
MARGIN = 0.8  # of the risk that the search aims at: the test on other rows wants some room


@dataclass(frozen=True)
class TuneOptions:
    """What is asked for beside the guarantee."""

    backend: str = "onnx"
    policy: str = AUTO
    batch: int = 32  # rows that are served together
    threads: int | None = None


def candidates(
    trace: Trace, guarantee: Guarantee, costs: Costs, options: TuneOptions, allowed: Sequence[int]
) -> list[Candidate]:
    """Sets of exits with their settings, quickest first."""
    losses, found = Risk(guarantee, trace).at_every_exit(), []
    for name in policies_for(options.policy, trace.model_spec):
        thresholds_for = threshold_grid(name, trace, losses)
        found += search(trace, thresholds_for, costs, options.batch, losses, MARGIN * guarantee.risk, allowed)
    return sorted(found, key=lambda one: one.seconds)


def at_more_risk(
    trace: Trace, guarantee: Guarantee, costs: Costs, options: TuneOptions, allowed: Sequence[int]
) -> list[str]:
    """Where nothing keeps the guarantee: the least risk at which something would, in words."""
    layers = [point.layer for point in trace.points]
    for risk in (one for one in LARGER if one > guarantee.risk):
        if found := candidates(trace, replace(guarantee, risk=risk), costs, options, allowed):
            return [f"At {100 * risk:g} % it could be: {line_of(found[0], layers)}."]
    return ["Not at any risk up to a fifth: these exits differ too often."]


def with_risk_model_of(trace: Trace, policy: Policy) -> Trace:
    """With the judge of a policy that has one."""
    return replace(trace, risk_model=(policy.offsets, policy.slopes)) if isinstance(policy, RiskModel) else trace


def told(costs: Costs) -> str:
    """What was measured, in words."""
    each = zip(costs.rows, costs.layers.sum(0) + costs.cutting, strict=True)
    per_row = ", ".join(f"{1000 * seconds / rows:.2f} ms at {rows}" for rows, seconds in each)
    first, last = (f"{1e6 * costs.cutting[at]:.0f} and {1e6 * costs.asking[at]:.0f} µs" for at in (0, -1))
    overhead = f"a cut and an exit's decision {first} at {costs.rows[0]}, {last} at {costs.rows[-1]}"
    return f"The full depth takes, a row, in batches: {per_row}; {overhead}."


def line_of(one: Candidate, layers: Sequence[int]) -> str:
    """A set of exits and what it would cost."""
    exits = ", ".join(str(layers[place]) for place in one.places)
    return f"exits on {exits}: {1000 * one.seconds:.2f} ms a row as priced, {one.risk:.2%} other answers"
