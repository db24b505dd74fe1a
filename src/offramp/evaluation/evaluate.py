"""`evaluate(runner, data)`: a trace, its curves, and a few points run live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from offramp.core.runner import Runner
from offramp.data.rows import TaskRows
from offramp.errors import BadValue
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.examples import extremes
from offramp.evaluation.points import Scorer, cheapest
from offramp.evaluation.reference import named_reference, reference_for
from offramp.evaluation.results import DataFacts, Elue, Evaluation, LivePoint, MachineFacts, ModelFacts, Point
from offramp.evaluation.timing import race
from offramp.evaluation.traces.about import FULL_DEPTH, check_labels, check_reference, check_trace, of_data
from offramp.evaluation.traces.reading import read_trace
from offramp.evaluation.traces.recording import record
from offramp.evaluation.traces.trace import Trace
from offramp.files.typed import typed
from offramp.originals.elue import LENGTH, flops_per_exit, track
from offramp.originals.width.report import width_of_rows
from offramp.policies import Never, Policy, RiskModel, parse
from offramp.policies.grids import fitting, grid

__all__ = ["EvaluationOptions", "evaluate", "obtain_trace"]

USUAL = 0.02  # answers that may differ, where nobody chose a policy
LONGEST = 1_000_000  # tokens that a text may be padded to in ELUE's count


@dataclass(frozen=True)
class EvaluationOptions:
    """What a user may ask of an evaluation."""

    policies: tuple[str, ...] = ()  # names; or one with its numbers, which is then the chosen one
    thresholds: tuple[float, ...] | None = None
    patience: tuple[int, ...] | None = None
    tolerance: float | None = None  # of a regression: how far apart two values still agree
    elue_length: int = LENGTH
    live: bool = True
    reference: str | None = None  # a model or a file whose answers count, in place of the full model's


def evaluate(
    runner: Runner,
    data: TaskRows,
    options: EvaluationOptions,
    trace_file: Path,
    *,
    command: str = "",
) -> Evaluation:
    """Evaluate a model on labelled rows (or on texts alone: then against its own full answers).

    The trace is read from `trace_file`, or recorded there.
    """
    plan = planned(runner, options)
    trace = obtain_trace(runner, data, trace_file, options.reference)
    passing = flops_per_exit(runner.config, options.elue_length)
    alone = flops_per_exit(runner.config, options.elue_length, alone=True)
    elue = None if passing is None or alone is None else (passing, alone)
    scorer = Scorer(trace, data.metrics, elue, options.tolerance)
    results = scored(scorer, runner, data, plan, options)
    return replace(results, date=datetime.now(UTC).isoformat(timespec="seconds"), command=command)


def obtain_trace(runner: Runner, data: TaskRows, file: Path, named: str | None = None) -> Trace:
    """Read the trace, if it is there and of this model and these rows; else record it there.

    `named` is the model or the file that answers are compared with, in place of the full model.
    """
    texts, labels, names = data.rows.texts, data.labels, data.task.labels
    reference = None if named is None else named_reference(named, runner, data)
    if file.exists():
        trace = read_trace(file)
        check_trace(trace, file, runner, of_data(texts, labels, names))
        check_labels(trace, file, labels)
        check_reference(trace, file, None if reference is None else reference.fingerprint)
    else:
        if reference is None:
            reference = reference_for(runner, texts)
        trace = record(runner, texts, labels, file, data.name, names=names, reference=reference)
    as_texts = labels if labels is not None and labels.dtype == object else None
    trace = trace.with_examples(texts, as_texts)
    if runner.config.answer_type.several_rows and trace.reference is None:  # texts, which a trace does not keep
        reference = reference or reference_for(runner, texts)
        return trace if reference is None else replace(trace, reference=reference.answers)
    return trace


@dataclass(frozen=True)
class Plan:
    """Which policies are drawn, and which one is the operating point (none: the cheapest that hardly differs)."""

    grids: dict[str, list[Policy]]
    chosen: Policy | None


def planned(runner: Runner, options: EvaluationOptions) -> Plan:
    """The options as policies; whatever is wrong with them is said before the model runs."""
    model_spec = runner.config.model_spec
    if options.tolerance is not None and not model_spec.answer_type.needs_tolerance:
        raise BadValue("This model's answers are compared exactly; leave `tolerance=` out.")
    if not 1 <= options.elue_length <= LONGEST:
        raise BadValue(f"`elue_length` is {options.elue_length}; it is from 1 to {LONGEST:,}.")
    given, names = _given(options.policies, fitting(model_spec))
    if options.thresholds is not None and not options.policies:
        raise BadValue("Thresholds mean something else in each policy; name one with `policy=`.")
    if options.patience is not None and "patience" not in names:
        raise BadValue('`patience=` is for the policy patience, which is not drawn; add `policy="patience"`.')
    if isinstance(given, RiskModel) and given.is_fitted:  # with a judge of its own
        model_spec = replace(model_spec, risk_model=(given.offsets, given.slopes))
    grids = {name: grid(name, model_spec, thresholds=options.thresholds, patience=options.patience) for name in names}
    chosen = given or _own_policy(runner)
    return Plan(grids, None if chosen is None else runner.config.choose(chosen))


def scored(
    scorer: Scorer,
    runner: Runner,
    data: TaskRows,
    plan: Plan,
    options: EvaluationOptions,
    against: Runner | None = None,
) -> Evaluation:
    """Everything that a report shows; `against` is what seconds are compared with."""
    trace, config = scorer.trace, runner.config
    lines = {name: scorer.curve(policies) for name, policies in plan.grids.items()}
    policy = plan.chosen or parse(cheapest(next(iter(lines.values())), USUAL).policy)
    about = trace.about
    results = Evaluation(
        typed(ModelFacts, about["model"] | {"policy": str(config.exit_policy), "name": runner.name}),
        typed(DataFacts, about["data"] | {"metrics": list(data.metrics)}),
        scorer.exits(),
        lines,
        scorer.curve(grid("layer", trace.model_spec)),
        offramp=about["offramp"],
        machine=typed(MachineFacts, about["machine"]),
        oracle=scorer.oracle() or None,
        chosen=scorer.choose(policy),
        picked_here=plan.chosen is None,
        reference=_reference(trace),
        tolerance=scorer.tolerance,
        elue=Elue(options.elue_length, track(about["model"]["parameters"])),
        examples=extremes(trace, data, policy, scorer.tolerance),
        calibration=config.calibrated if policy == config.exit_policy else None,
        width=width_of_rows(config, trace, policy),
        questions=_official(trace, data, policy),
    )
    return live(results, runner, data, trace, policy, against) if options.live else results


def _reference(trace: Trace) -> str | None:
    """Whose answers these are compared with, where not the full model's."""
    name = (trace.about.get("reference") or {}).get("name")
    return None if name == FULL_DEPTH else name


def _official(trace: Trace, data: TaskRows, policy: Policy) -> dict[str, dict[str, float]] | None:
    """A benchmark's own scores of the full model and of the chosen point, where it has some."""
    rows = data.rows
    answers = {"full": trace.full, "chosen": trace.replay(policy).answers}
    scores = trace.answer_type.official_scores(answers, rows.ids, rows.labels)
    if scores is None or trace.decoding.no_answer is None or trace.group is None or trace.labels is None:
        return scores
    last = trace.rows_at_exit(-1)
    best = trace.answer_type.tuned_scores(last, np.asarray(trace.group), trace.examples or (), trace.labels)
    return scores | {"best": best}


def _given(written: Sequence[str], known: list[str]) -> tuple[Policy | None, list[str]]:
    """The chosen policy, where one is written with numbers, and the names of the curves."""
    chosen = [policy for policy in written if ":" in policy]
    if len(chosen) > 1:
        raise BadValue(f"One policy can be chosen, not {len(chosen)} ({', '.join(chosen)}); name the others alone.")
    names = [policy.split(":")[0] for policy in written] or known
    return (parse(chosen[0]) if chosen else None), list(dict.fromkeys(names))


def _own_policy(runner: Runner) -> Policy | None:
    policy = runner.config.exit_policy
    return None if isinstance(policy, Never) else policy


def live(
    results: Evaluation, runner: Runner, data: TaskRows, trace: Trace, policy: Policy, against: Runner | None = None
) -> Evaluation:
    """With the seconds of some points and of the plain model; layers beside them are of the same rows."""
    assert results.chosen is not None
    points: list[Point] = [results.chosen, *_along(results.policies.get(policy.name, []))]
    by_policy = {point.policy: point for point in points}
    policies = [parse(written) for written in by_policy]
    timing = race(runner, data.rows.texts, policies, against=against)
    timed = []
    for point, one, seconds in zip(by_policy.values(), policies, timing.seconds, strict=True):
        rows = timing.places if trace.group is None else np.isin(trace.group, timing.places)
        cost = layer_cost(trace.replay(one).layer[rows], trace.depth)
        plain = {name.name: getattr(point, name.name) for name in fields(Point)}
        plain |= {"mean_layers": cost.mean_layers, "cost": cost.layers_run, "saving": cost.saved, "seconds": seconds}
        plain["speedup"] = cost.speedup if cost.mean_layers else None
        timed.append(LivePoint(**plain, measured_speedup=timing.plain / seconds))
    spent = {point.policy: point.seconds for point in timed}
    return replace(
        results,
        chosen=replace(results.chosen, seconds=spent.get(results.chosen.policy)),
        policies={
            name: [replace(point, seconds=spent.get(point.policy)) for point in line]
            for name, line in results.policies.items()
        },
        live=timed,
        plain_seconds=timing.plain,
        live_rows=len(timing.places),
        plain_name=None if against is None else f"{Path(against.name).name}, {against.backend} {against.dtype}",
    )


def _along(line: list[Point]) -> list[Point]:
    """Two points that cut a curve's range of costs into thirds."""
    if not line:
        return []
    low, high = (most(point.mean_layers for point in line) for most in (min, max))
    costs = (low + (high - low) / 3, low + 2 * (high - low) / 3)
    return [min(line, key=lambda point: abs(point.mean_layers - cost)) for cost in costs]
