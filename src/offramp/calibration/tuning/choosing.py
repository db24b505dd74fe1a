"""Rank sets of exits with their policy settings by time per row, independently of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offramp.answers import AnswerType
from offramp.calibration.choice import AUTO, policies_for
from offramp.calibration.estimate_errors import with_errors
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.group_search import search_groups
from offramp.calibration.tuning.search import Candidate, search
from offramp.calibration.tuning.threshold_grids import threshold_grid
from offramp.calibration.tuning.windows import window_losses
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel
from offramp.policies.grids import fine_grid

__all__ = [
    "TuneOptions",
    "candidates",
    "describe_candidate",
    "describe_costs",
    "settings_to_test",
    "suggest_larger_risk",
    "with_risk_model",
]

LARGER_RISKS = (0.02, 0.03, 0.05, 0.1, 0.2)  # tried if the guaranteed risk is too small
MARGIN = 0.8  # the search aims at this fraction of the risk and of the limits, to leave room for the test


@dataclass(frozen=True)
class TuneOptions:
    """Options of tuning besides the guarantee."""

    backend: str = "onnx"
    policy: str = AUTO
    batch: int = 32  # rows per batch when served
    threads: int | None = None


def candidates(
    trace: Trace, guarantee: Guarantee, costs: Costs, options: TuneOptions, allowed: Sequence[int]
) -> list[Candidate]:
    """Return sets of exits with their policy settings, fastest first."""
    results = list[Candidate]()
    names = policies_for(options.policy, trace.model_spec)
    for name in (name for name in names if POLICIES[name].sees_groups):
        results += search_groups(name, trace, guarantee, costs, MARGIN, allowed)
    if trace.group is not None and not trace.answer_type.has_windows:  # documents exit by comparison
        return sorted(results, key=lambda candidate: candidate.seconds)
    risk = Risk(guarantee, trace)
    if trace.group is None:
        losses, changes = risk.losses_per_exit(), risk.changes_per_exit()
    else:
        losses = changes = window_losses(risk)
    for name in (name for name in names if not POLICIES[name].sees_groups):
        thresholds_for = threshold_grid(name, trace, changes)
        results += search(
            trace, thresholds_for, costs, options.batch, losses, risk.limits, guarantee.risk, MARGIN, allowed
        )
    return sorted(results, key=lambda candidate: candidate.seconds)


def suggest_larger_risk(
    trace: Trace, guarantee: Guarantee, costs: Costs, options: TuneOptions, allowed: Sequence[int]
) -> list[str]:
    """Return a sentence with the smallest larger risk at which some exits would be kept."""
    layers = [point.layer for point in trace.points]
    for risk in (risk for risk in LARGER_RISKS if risk > guarantee.risk):
        if results := candidates(trace, replace(guarantee, risk=risk), costs, options, allowed):
            return [f"With a risk of {100 * risk:g} %: {describe_candidate(results[0], layers, trace.answer_type)}."]
    if guarantee.class_risk is not None and candidates(
        trace, replace(guarantee, class_risk=None), costs, options, allowed
    ):
        return [f"Only without the limit of {100 * guarantee.class_risk:g} % per class (`class_risk='none'`)."]
    return [f"No risk up to {100 * LARGER_RISKS[-1]:g} % works: the early exits differ from the full model too often."]


def settings_to_test(trace: Trace, policy: Policy) -> tuple[Trace, list[Policy]]:
    """Return the trace with the policy's risk model, and the settings of the policy to test on it."""
    trace = with_errors(with_risk_model(trace, policy), policy)
    return trace, fine_grid(policy.name, trace.model_spec)


def with_risk_model(trace: Trace, policy: Policy) -> Trace:
    """Return the trace with the policy's risk model, if it has one."""
    return replace(trace, risk_model=(policy.offsets, policy.slopes)) if isinstance(policy, RiskModel) else trace


def describe_costs(costs: Costs, answer_type: AnswerType) -> str:
    """Return the measured times as text."""
    row = answer_type.row_name
    full, exits = costs.layers.sum(0) + costs.segment_overhead, costs.segment_overhead + costs.exit_overhead
    times = [
        tuple(f"{1000 * costs.row_seconds(part, rows):.2f} ms" for part in (full, exits)) for rows in (1, costs.batch)
    ]
    return (
        f"For {row}s of median length at batch size 1, the full model takes {times[0][0]} per {row} and each exit adds "
        f"{times[0][1]}; at batch size {costs.batch}, {times[1][0]} and {times[1][1]}."
    )


def describe_candidate(candidate: Candidate, layers: Sequence[int], answer_type: AnswerType) -> str:
    """Return a set of exits with its estimated time and risk as text."""
    exits = ", ".join(str(layers[index]) for index in candidate.exit_indices)
    time = f"{1000 * candidate.seconds:.2f} ms per {answer_type.row_name} (estimated)"
    return f"exits on layers {exits}: {time}, {100 * candidate.risk:.1f} % {answer_type.change_name}"
