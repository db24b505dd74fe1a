"""The choice itself: the cheapest setting that keeps a guarantee, or the best one at a given speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.calibration.bounds import MOST_ROWS, rows_needed
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.search import per_exit
from offramp.calibration.sequence import Tested, fixed_sequence, pareto, walk
from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel
from offramp.policies.grids import fitting, grid

__all__ = [
    "AUTO",
    "SEED",
    "CalibrationOptions",
    "choose_with_guarantee",
    "fastest",
    "fewer",
    "policies_for",
    "shuffled",
    "too_few",
]

AUTO = "auto"
SEED = 0  # of the one shuffle; nobody may pick the luckiest

Choice = tuple[Policy | None, dict[str, Any]]  # and the evidence, with a sentence that says it


def policies_for(name: str, model_spec: ModelSpec) -> list[str]:
    """The policies to try: the one that was asked for, or the certainty that fits and the judge."""
    if name != AUTO:
        return [name]
    return [one for one in fitting(with_placeholder_risk_model(model_spec)) if POLICIES[one].automatic]


@dataclass(frozen=True)
class CalibrationOptions:
    """What a user may ask for beside the guarantee."""

    policies: tuple[str, ...] = ()  # names
    per_exit: bool = False  # a threshold of its own for every exit
    speedup: float | None = None  # instead of a guarantee: the best quality at so many times fewer layers
    temperature: bool = False

    @property
    def searches(self) -> bool:
        """Whether one order of settings, from safe to risky, has to be found on other rows first."""
        return len(self.policies) > 1 or self.per_exit

    @property
    def needs_risk_model(self) -> bool:
        """Whether a judge has to be fitted on other rows first."""
        return RiskModel.name in self.policies

    def left_to_test(self, rows: int) -> int:
        """How many of so many rows the test itself gets."""
        rows -= rows // 4 if self.temperature else 0
        rows -= rows // 4 if self.needs_risk_model else 0
        return rows - (rows // 2 if self.searches else 0)


def shuffled(trace: Trace) -> NDArray[np.int64]:
    """The one order of a trace's rows that tests use."""
    return np.random.default_rng(SEED).permutation(len(trace))


def too_few(rows: int, guarantee: Guarantee, answer_type: AnswerType) -> str | None:
    """Why so many rows cannot show the guarantee, even without a single error."""
    need = rows_needed(guarantee.p_value, guarantee.level)
    if need is not None and rows >= need:
        return None
    takes = f"{need:,}" if need else f"more than {MOST_ROWS:,}"
    wish = f"{_wish(guarantee, answer_type)} takes {takes} {_what(answer_type)}s"
    return f"Not with {_rows(rows, answer_type)}: {wish} without a single error."


def choose_with_guarantee(trace: Trace, guarantee: Guarantee, options: CalibrationOptions, origin: str) -> Choice:
    """The cheapest setting that passes: of one threshold_grid in its order, of several by a search on half the rows."""
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
    rows = _rows(len(trace), trace.answer_type)
    tested = walk(Risk(guarantee, trace), policies, order)
    last = fixed_sequence([setting.p_value for setting in tested], guarantee.level)
    evidence["tested"] = [_told(setting) for setting in tested]
    passed = tested[: 0 if last is None else last + 1]
    best = min(passed, key=lambda setting: setting.mean_layers, default=None)
    if best is None or best.mean_layers >= trace.depth:
        wish = _wish(guarantee, trace.answer_type)
        return None, evidence | {"sentence": f"No setting that saves anything was shown to keep {wish} on {rows}."}
    speedup, words = _speedup(trace.depth, best.mean_layers), guarantee.about(trace.answer_type)
    sentence = f"With {100 * guarantee.confidence:g} % confidence {words}: shown on {rows} {origin}, "
    sentence += f"with `{best.policy}`, which ran {fewer(speedup)} there."
    return best.policy, evidence | _told(best) | {"speedup": speedup, "sentence": sentence}


def _speedup(depth: int, mean_layers: float) -> float | None:
    """Times fewer layers; None where no layer ran."""
    return depth / mean_layers if mean_layers else None


def fewer(speedup: float | None) -> str:
    """How many layers were saved, in words."""
    return "no layers" if speedup is None else f"{speedup:.2f} × fewer layers"


def fastest(
    trace: Trace, names: Sequence[str], speed: float, tolerance: float | None, reference: str | None = None
) -> Choice:
    """The setting with the most answers like the full model's among those that are fast enough; no guarantee."""
    if not speed >= 1:
        raise BadValue(f"`speedup` is {speed:g}; it is at least 1.")
    settings: list[tuple[float, float, Policy]] = []
    disagreement = Risk(Guarantee("disagreement", tolerance=tolerance), trace)
    for name in names:
        for policy in grid(name, trace.model_spec):
            replayed = trace.replay(policy)
            speedup = layer_cost(replayed.layer, trace.depth).speedup
            settings.append((1 - float(disagreement.losses(replayed).mean()), speedup, policy))
    fast = [setting for setting in settings if setting[1] >= speed]
    if not fast:
        most = max(setting[1] for setting in settings)
        return None, {"sentence": f"{speed:g} × fewer layers cannot be had; the most is {most:.2f} ×."}
    agreement, speedup, policy = max(fast, key=lambda setting: setting[:2])
    whom = reference or "the full model"
    times = None if speedup == float("inf") else speedup
    sentence = (
        f"Chosen for speed, without a guarantee: `{policy}` ran {fewer(times)} on "
        f"{_rows(len(trace), trace.answer_type)} and answered {agreement:.1%} of them as {whom} does."
    )
    return policy, {"guarantee": None, "speedup": times, "agreement": agreement, "sentence": sentence}


def _rows(count: int, answer_type: AnswerType) -> str:
    return f"{count:,} {_what(answer_type)}{'' if count == 1 else 's'}"


def _what(answer_type: AnswerType) -> str:
    return answer_type.unit


def _wish(guarantee: Guarantee, answer_type: AnswerType) -> str:
    return f"{guarantee.about(answer_type)} at {100 * guarantee.confidence:g} % confidence"


def _told(one: Tested) -> dict[str, Any]:
    return asdict(one) | {"policy": str(one.policy)}
