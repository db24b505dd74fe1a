"""Choose a policy: the cheapest setting that passes the test of a guarantee, or the best one at a required speedup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.calibration.bounds import MAX_ROWS, rows_needed
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.search import per_exit
from offramp.calibration.sequence import SettingResult, fixed_sequence, pareto, run_sequence
from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel
from offramp.policies.grids import applicable_policies, grid

__all__ = [
    "AUTO",
    "SEED",
    "CalibrationOptions",
    "choose_for_speedup",
    "choose_with_guarantee",
    "describe_speedup",
    "explain_too_few_rows",
    "policies_for",
    "shuffled",
]

AUTO = "auto"
SEED = 0  # fixed, so that nobody can pick the seed with the best result

Choice = tuple[Policy | None, dict[str, Any]]  # the policy and its evidence, which includes a sentence for users


def policies_for(name: str, model_spec: ModelSpec) -> list[str]:
    """Return the names of the policies to try: `name`, or for "auto" the default score policy and the risk model."""
    if name != AUTO:
        return [name]
    names = applicable_policies(with_placeholder_risk_model(model_spec))
    return [policy for policy in names if POLICIES[policy].automatic]


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of a calibration besides its guarantee."""

    policies: tuple[str, ...] = ()  # names
    per_exit: bool = False  # a separate threshold for every exit
    speedup: float | None = None  # instead of a guarantee: the best quality at this speedup, counted in layers
    temperature: bool = False

    @property
    def searches(self) -> bool:
        """Whether the order of settings, from safe to risky, is searched on separate rows."""
        return len(self.policies) > 1 or self.per_exit

    @property
    def needs_risk_model(self) -> bool:
        """Whether a risk model is fitted on separate rows."""
        return RiskModel.name in self.policies

    def num_test_rows(self, rows: int) -> int:
        """Return how many of `rows` rows remain for the test itself."""
        rows -= rows // 4 if self.temperature else 0
        rows -= rows // 4 if self.needs_risk_model else 0
        return rows - (rows // 2 if self.searches else 0)


def shuffled(trace: Trace) -> NDArray[np.int64]:
    """Return the row order of a trace that all tests use."""
    return np.random.default_rng(SEED).permutation(len(trace))


def explain_too_few_rows(rows: int, guarantee: Guarantee, answer_type: AnswerType) -> str | None:
    """Explain why `rows` rows cannot show the guarantee even without a single error; None if they can."""
    needed = rows_needed(guarantee.p_value, guarantee.level)
    if needed is not None and rows >= needed:
        return None
    minimum = f"at least {needed:,}" if needed else f"more than {MAX_ROWS:,}"
    return (
        f"{_format_rows(rows, answer_type)} {'is' if rows == 1 else 'are'} too few to guarantee "
        f"{_goal(guarantee, answer_type)}: {minimum} {answer_type.unit}s are needed, even without a single error."
    )


def choose_with_guarantee(trace: Trace, guarantee: Guarantee, options: CalibrationOptions, origin: str) -> Choice:
    """Return the cheapest setting that passes the test.

    The settings of one threshold grid are tested in their order; several grids are first ordered on half the rows.
    """
    model_spec, order = trace.model_spec, shuffled(trace)
    policies = [policy for name in options.policies for policy in grid(name, model_spec)]
    evidence: dict[str, Any] = {"guarantee": asdict(guarantee), "order": "from safe to risky", "search_rows": 0}
    if options.searches:
        half = len(order) // 2
        search = Risk(guarantee, trace.take(np.sort(order[:half])))
        if options.per_exit:
            policies += [policy for name in options.policies for policy in per_exit(search, name, model_spec)]
        policies = pareto(search, policies)
        trace = trace.take(np.sort(order[half:]))
        order = shuffled(trace)
        evidence |= {"order": "the Pareto front of other rows, from safe to risky", "search_rows": half}
    evidence |= {
        "test_rows": len(trace),
        "rows_needed": rows_needed(guarantee.p_value, guarantee.level),
        "origin": origin,
    }
    rows, answer_type = _format_rows(len(trace), trace.answer_type), trace.answer_type
    tested = run_sequence(Risk(guarantee, trace), policies, order)
    last = fixed_sequence([setting.p_value for setting in tested], guarantee.level)
    evidence["tested"] = [_to_dict(setting) for setting in tested]
    passed = tested[: 0 if last is None else last + 1]
    best = min(passed, key=lambda setting: setting.mean_layers, default=None)
    if best is None or best.mean_layers >= trace.depth:
        goal = _goal(guarantee, answer_type)
        sentence = f"Could not guarantee {goal}: no setting that saves layers passed the test on {rows}."
        return None, evidence | {"sentence": sentence}
    speedup = _speedup(trace.depth, best.mean_layers)
    confidence = f"With {100 * guarantee.confidence:g} % confidence"
    sentence = (
        f"{confidence}, {guarantee.describe(answer_type)} (tested on {rows} {origin}). "
        f"Exit policy: {best.policy.describe()}; {describe_speedup(speedup)} on these {answer_type.unit}s."
    )
    return best.policy, evidence | _to_dict(best) | {"speedup": speedup, "sentence": sentence}


def _speedup(depth: int, mean_layers: float) -> float | None:
    """Return depth over mean layers; None if no layer ran."""
    return depth / mean_layers if mean_layers else None


def describe_speedup(speedup: float | None) -> str:
    """Return the layers saved as text, such as "1.52 × fewer layers"."""
    return "no layers" if speedup is None else f"{speedup:.2f} × fewer layers"


def choose_for_speedup(
    trace: Trace, names: Sequence[str], minimum: float, tolerance: float | None, reference: str | None = None
) -> Choice:
    """Return the setting with the fewest changed predictions at a speedup of at least `minimum`; no guarantee."""
    if not minimum >= 1:
        raise BadValue(f"`speedup` must be at least 1, got {minimum:g}.")
    settings: list[tuple[float, float, Policy]] = []
    disagreement = Risk(Guarantee("disagreement", tolerance=tolerance), trace)
    for name in names:
        for policy in grid(name, trace.model_spec):
            replayed = trace.replay(policy)
            speedup = layer_cost(replayed.layer, trace.depth).speedup
            settings.append((1 - float(disagreement.losses(replayed).mean()), speedup, policy))
    fast = [setting for setting in settings if setting[1] >= minimum]
    if not fast:
        maximum = max(setting[1] for setting in settings)
        return None, {"sentence": f"{minimum:g} × fewer layers cannot be reached; the maximum is {maximum:.2f} ×."}
    agreement, speedup, policy = max(fast, key=lambda setting: setting[:2])
    finite_speedup = None if speedup == float("inf") else speedup
    sentence = (
        f"Chosen for speed, without a guarantee: {policy.describe()}; {describe_speedup(finite_speedup)} on "
        f"{_format_rows(len(trace), trace.answer_type)}, and {100 * agreement:.1f} % of predictions agree with "
        f"{reference or 'the full model'}."
    )
    return policy, {"guarantee": None, "speedup": finite_speedup, "agreement": agreement, "sentence": sentence}


def _format_rows(count: int, answer_type: AnswerType) -> str:
    return f"{count:,} {answer_type.unit}{'' if count == 1 else 's'}"


def _goal(guarantee: Guarantee, answer_type: AnswerType) -> str:
    return f"with {100 * guarantee.confidence:g} % confidence that {guarantee.describe(answer_type)}"


def _to_dict(setting: SettingResult) -> dict[str, Any]:
    return asdict(setting) | {"policy": str(setting.policy)}
