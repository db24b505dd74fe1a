"""Choose a policy: the cheapest setting that passes the test of a guarantee, or the best one at a required speedup.

If anything is fitted or searched (a risk model, temperatures, the order of several policies), a quarter of the rows is
used for this, and the other rows test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.calibration.bounds import MAX_ROWS
from offramp.calibration.changes import constant_prediction, limit_rows
from offramp.calibration.estimate_errors import fit_errors
from offramp.calibration.limits import count_units
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.risk_model import fit_risk_model
from offramp.calibration.risks import SEED, Guarantee, Risk
from offramp.calibration.search import per_exit
from offramp.calibration.sequence import SettingResult, observed_risk, pareto, run_sequence
from offramp.calibration.temperature import fit_temperatures
from offramp.calibration.wording import confidence_of, describe_guarantee
from offramp.core.stepper import ModelSpec
from offramp.errors import BadInput, BadValue
from offramp.evaluation.classes import class_results
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel, TopK
from offramp.policies.grids import applicable_policies, fine_grid, grid

__all__ = [
    "AUTO",
    "CalibrationOptions",
    "Choice",
    "choose",
    "choose_for_speedup",
    "choose_with_guarantee",
    "describe_speedup",
    "explain_too_few_rows",
    "policies_for",
    "random_split",
]

AUTO = "auto"
FITTING_DIVISOR = 4  # one in four rows (or groups) is used to fit and search
MIN_RISK_MODEL_ROWS = 20


def policies_for(name: str, model_spec: ModelSpec) -> list[str]:
    """Return the names of the policies to try: `name`, or for "auto" the default score policy and the risk model."""
    if name != AUTO:
        return [name]
    names = applicable_policies(with_placeholders(model_spec))
    return [policy for policy in names if POLICIES[policy].automatic]


@dataclass(frozen=True)
class Choice:
    """The chosen policy (None: no setting passed) and its evidence, which includes a sentence for users."""

    policy: Policy | None
    evidence: dict[str, Any]
    trace: Trace  # the tested rows
    temperatures: NDArray[np.float64] | None = None


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

    @property
    def needs_errors(self) -> bool:
        """Whether the errors of the exits' scores are fitted on separate rows."""
        return TopK.name in self.policies

    @property
    def fits(self) -> bool:
        """Whether a quarter of the rows is used to fit and search."""
        return self.searches or self.needs_risk_model or self.needs_errors or self.temperature

    def num_test_rows(self, rows: int) -> int:
        """Return how many of `rows` rows (or groups) remain for the test itself."""
        return rows - (rows // FITTING_DIVISOR if self.fits else 0)


def explain_too_few_rows(rows: int, guarantee: Guarantee, answer_type: AnswerType) -> str | None:
    """Explain why `rows` rows cannot show the guarantee even without a single error; None if they can."""
    needed = guarantee.rows_needed
    if needed is not None and rows >= needed:
        return None
    unit, units = ("group", "groups") if guarantee.group else (answer_type.unit, answer_type.plural)
    minimum = f"at least {needed:,}" if needed else f"more than {MAX_ROWS:,}"
    return (
        f"{_format_rows(rows, unit, units)} {'is' if rows == 1 else 'are'} too few to guarantee "
        f"{_goal(guarantee, answer_type)}: {minimum} {units} are needed, even without a single error."
    )


def choose(trace: Trace, guarantee: Guarantee, options: CalibrationOptions, origin: str) -> Choice:
    """Fit and search on a quarter of the rows if necessary, then choose a policy on the others."""
    policies: list[Policy] | None = None
    evidence: dict[str, Any] = {"order": "from safe to risky", "search_rows": 0}
    temperatures = None
    if options.fits:
        fitting, trace = split_for_fitting(trace)
        evidence["search_rows"] = len(fitting)
        if options.temperature:
            temperatures = fit_temperatures(fitting)
            fitting, trace = fitting.scaled(temperatures), trace.scaled(temperatures)
        if options.needs_risk_model:
            if len(fitting) < MIN_RISK_MODEL_ROWS:
                raise BadInput(
                    f"{len(fitting) + len(trace)} rows are too few to fit a risk model on a quarter of them; "
                    f"give at least {FITTING_DIVISOR * MIN_RISK_MODEL_ROWS}."
                )
            risk_model = fit_risk_model(Risk(guarantee, fitting))
            fitting, trace = (replace(part, risk_model=risk_model) for part in (fitting, trace))
        if options.needs_errors:
            errors = fit_errors(fitting)
            fitting, trace = (replace(part, errors=errors) for part in (fitting, trace))
        if options.searches and options.speedup is None:
            policies, evidence["order"] = _search(Risk(guarantee, fitting), options)
    if options.speedup is not None:
        policy, facts = choose_for_speedup(
            trace, options.policies, options.speedup, guarantee.tolerance, guarantee.reference
        )
        return Choice(policy, facts, trace, temperatures)
    policies = policies or [policy for name in options.policies for policy in fine_grid(name, trace.model_spec)]
    choice = choose_with_guarantee(trace, guarantee, policies, origin)
    return replace(choice, evidence=evidence | choice.evidence, temperatures=temperatures)


def random_split(rows: int, clusters: NDArray[np.int64] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of a random quarter of the rows and of the others; groups of rows stay together."""
    clusters = np.arange(rows) if clusters is None else clusters
    order = np.random.default_rng(SEED).permutation(clusters.max(initial=-1) + 1)
    is_first = np.isin(clusters, order[: len(order) // FITTING_DIVISOR])
    return np.flatnonzero(is_first), np.flatnonzero(~is_first)


def split_for_fitting(trace: Trace) -> tuple[Trace, Trace]:
    """Return a random quarter of the rows, to fit and search on, and the others."""
    fitting, testing = random_split(len(trace), trace.clusters)
    return trace.take(fitting), trace.take(testing)


def _search(risk: Risk, options: CalibrationOptions) -> tuple[list[Policy], str]:
    """Return the settings to test, from safe to risky, and a description of their order.

    Of several policies, the one with the fewest layers within the risk on these rows is chosen. Thresholds per exit are
    those on the Pareto front of these rows.
    """
    spec = risk.trace.model_spec
    if options.per_exit:
        policies = [policy for name in options.policies for policy in fine_grid(name, spec)]
        policies += [policy for name in options.policies for policy in per_exit(risk, name, spec)]
        return pareto(risk, policies), "the Pareto front of other rows, from safe to risky"
    layers = {name: _layers_within_risk(risk, name) for name in options.policies}
    best = min(options.policies, key=lambda name: layers[name])
    return fine_grid(best, spec), "from safe to risky, of the policy that saves most on other rows"


def _layers_within_risk(risk: Risk, name: str) -> float:
    """Return the fewest layers of a policy whose observed risks are within the limits."""
    replays = (risk.trace.replay(policy) for policy in grid(name, risk.trace.model_spec))
    within = [float(replayed.layer.mean()) for replayed in replays if observed_risk(risk, replayed) <= 1]
    return min(within, default=float(risk.trace.depth))


def choose_with_guarantee(trace: Trace, guarantee: Guarantee, policies: Sequence[Policy], origin: str) -> Choice:
    """Return the cheapest of the settings, which are tested in their order, that passes the test."""
    risk, answer_type = Risk(guarantee, trace), trace.answer_type
    evidence: dict[str, Any] = {
        "guarantee": asdict(guarantee),
        "test_rows": len(trace),
        "rows_needed": guarantee.rows_needed,
        "origin": origin,
    }
    if guarantee.group:
        evidence["test_groups"] = len(risk.order)
    if sentence := explain_too_few_flagged(risk):
        return Choice(None, evidence | {"sentence": sentence, "tested": []}, trace)
    tested = run_sequence(risk, policies)
    evidence["tested"] = [_to_dict(setting) for setting in tested]
    passed = [setting for setting in tested if setting.passed]
    best = min(passed, key=lambda setting: setting.mean_layers, default=None)
    if best is None or best.mean_layers >= trace.depth:
        because = "" if not tested or tested[-1].failed is None else f" The limit that failed: {tested[-1].failed}."
        rows = _format_rows(len(trace), answer_type.unit, answer_type.plural)
        sentence = f"Could not guarantee {_goal(guarantee, answer_type)}: no setting that saves layers passed the test "
        return Choice(None, evidence | {"sentence": f"{sentence}on {rows}.{because}"}, trace)
    replayed = trace.replay(best.policy)
    evidence["limits"] = limit_rows(risk, replayed)
    evidence["classes"] = [asdict(entry) for entry in class_results(trace, replayed.answers, guarantee.bands)]
    evidence["constant"] = constant_prediction(risk)
    speedup = _speedup(trace.depth, best.mean_layers)
    sentence = describe_guarantee(risk, evidence["limits"], origin)
    saved = f"{describe_speedup(speedup)} on the tested {answer_type.plural}"
    sentence += f" Exit policy: {best.policy.describe()}; {saved}."
    return Choice(best.policy, evidence | _to_dict(best) | {"speedup": speedup, "sentence": sentence}, trace)


def explain_too_few_flagged(risk: Risk) -> str | None:
    """Explain why there are too few flagged rows for the required recall or precision; None if there are enough."""
    for index, limit in enumerate(risk.limits.limits):
        if limit.outcomes:
            continue
        rows = count_units(risk.limits.counted[:, -1, index], risk.trace.clusters)
        needed = risk.guarantee.limit_rows_needed(limit.risk)
        if rows < needed:
            unit = "groups with flagged rows" if risk.guarantee.group else "flagged rows"
            return (
                f"Too few {unit} ({rows:,}) to guarantee {limit.name}, {100 * (1 - limit.risk):g} %, "
                f"{confidence_of(risk.guarantee)}: at least {needed:,} are needed, even without a single error."
            )
    return None


def _speedup(depth: int, mean_layers: float) -> float | None:
    """Return depth over mean layers; None if no layer ran."""
    return depth / mean_layers if mean_layers else None


def describe_speedup(speedup: float | None) -> str:
    """Return the layers saved as text, such as "1.52 × fewer layers"."""
    return "all exits before the first layer" if speedup is None else f"{speedup:.2f} × fewer layers"


def choose_for_speedup(
    trace: Trace, names: Sequence[str], minimum: float, tolerance: float | None, reference: str | None = None
) -> tuple[Policy | None, dict[str, Any]]:
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
    rows = _format_rows(len(trace), trace.answer_type.unit, trace.answer_type.plural)
    sentence = (
        f"Chosen for speed, without a guarantee: {policy.describe()}; {describe_speedup(finite_speedup)} on {rows}, "
        f"and {100 * agreement:.1f} % of predictions agree with {reference or 'the full model'}."
    )
    return policy, {"guarantee": None, "speedup": finite_speedup, "agreement": agreement, "sentence": sentence}


def _format_rows(count: int, unit: str, units: str) -> str:
    return f"{count:,} {unit if count == 1 else units}"


def _goal(guarantee: Guarantee, answer_type: AnswerType) -> str:
    return f"{confidence_of(guarantee)} that {guarantee.describe(answer_type)}"


def _to_dict(setting: SettingResult) -> dict[str, Any]:
    return asdict(setting) | {"policy": str(setting.policy)}
