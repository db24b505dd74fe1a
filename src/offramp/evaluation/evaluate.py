"""`evaluate(runner, data, …)`: record a trace, compute curves, and time a few points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from offramp.core.runner import Runner
from offramp.data.rows import TaskRows
from offramp.errors import BadValue
from offramp.evaluation.classes import class_results
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.examples import extremes
from offramp.evaluation.points import Scorer, cheapest
from offramp.evaluation.reference import named_reference, reference_for
from offramp.evaluation.results import DataFacts, Elue, Evaluation, LivePoint, MachineFacts, ModelFacts, Point
from offramp.evaluation.timing import Timings, time_policies
from offramp.evaluation.traces.about import FULL_DEPTH, check_labels, check_reference, check_trace, data_fingerprint
from offramp.evaluation.traces.reading import read_trace
from offramp.evaluation.traces.recording import Reference, record
from offramp.evaluation.traces.trace import Trace
from offramp.files.typed_json import parse_json_as
from offramp.originals.elue import ELUE_LENGTH, flops_per_exit, track
from offramp.originals.width.report import width_report
from offramp.policies import Never, Policy, parse
from offramp.policies.grids import applicable_policies, grid

__all__ = ["EvaluationOptions", "evaluate", "obtain_trace"]

DEFAULT_CHANGED = 0.02  # maximum fraction of changed predictions if no policy is chosen
MAX_ELUE_LENGTH = 1_000_000


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation."""

    policies: tuple[str, ...] = ()  # names; one may have numbers and is then the operating point
    thresholds: tuple[float, ...] | None = None
    patience: tuple[int, ...] | None = None
    tolerance: float | None = None  # regression: the largest difference that counts as equal
    elue_length: int = ELUE_LENGTH
    live: bool = True
    reference: str | None = None  # a model or file to compare with instead of the full model
    preferred: str | None = None  # without policies, the one that comes first and has the operating point


def evaluate(
    runner: Runner,
    data: TaskRows,
    options: EvaluationOptions,
    trace_file: Path,
    *,
    command: str = "",
) -> Evaluation:
    """Evaluate a model on labelled rows; without labels, predictions are compared with the full model's.

    The trace is read from `trace_file`, or recorded there.
    """
    plan = plan_evaluation(runner, options)
    trace = obtain_trace(runner, data, trace_file, options.reference)
    passing = flops_per_exit(runner.config, options.elue_length)
    alone = flops_per_exit(runner.config, options.elue_length, static=True)
    elue = None if passing is None or alone is None else (passing, alone)
    scorer = Scorer(trace, data.metrics, elue, options.tolerance)
    results = build_results(scorer, runner, data, plan, options)
    return replace(results, date=datetime.now(UTC).isoformat(timespec="seconds"), command=command)


def obtain_trace(
    runner: Runner,
    data: TaskRows,
    file: Path,
    reference_name: str | None = None,
    quiet: bool = False,
    reference: Reference | None = None,
) -> Trace:
    """Read the trace if the file exists, else record it; raise if it is of another model or other rows.

    `reference_name` is a model or file to compare with instead of the full model, `reference` are predictions that are
    known already; `quiet` does not report truncated texts.
    """
    texts, labels, names = data.rows.texts, data.labels, data.task.labels
    reference = reference if reference_name is None else named_reference(reference_name, runner, data)
    if file.exists():
        trace = read_trace(file)
        check_trace(trace, file, runner, data_fingerprint(texts, labels, names))
        check_labels(trace, file, labels)
        check_reference(trace, file, None if reference is None else reference.fingerprint)
    else:
        if reference is None:
            reference = reference_for(runner, texts)
        trace = record(runner, texts, labels, file, data.name, names=names, reference=reference, quiet=quiet)
    text_labels = labels if labels is not None and labels.dtype == object else None
    trace = trace.with_examples(texts, text_labels)
    answer_type = runner.config.answer_type
    has_objects = answer_type.may_have_several_rows  # which a trace does not store
    if has_objects and trace.reference is None:
        reference = reference or reference_for(runner, texts)
        return trace if reference is None else replace(trace, reference=reference.answers)
    return trace


@dataclass(frozen=True)
class Plan:
    """The policy grids to evaluate, and the operating point (None: the cheapest with few changed predictions)."""

    grids: dict[str, list[Policy]]
    chosen: Policy | None


def plan_evaluation(runner: Runner, options: EvaluationOptions) -> Plan:
    """Turn the options into policies; raise for invalid ones before the model runs."""
    model_spec = runner.config.model_spec
    if options.tolerance is not None and not model_spec.answer_type.needs_tolerance:
        raise BadValue("`tolerance=` is for regression only; remove it.")
    if not 1 <= options.elue_length <= MAX_ELUE_LENGTH:
        raise BadValue(f"`elue_length` must be from 1 to {MAX_ELUE_LENGTH:,}, got {options.elue_length}.")
    defaults = sorted(applicable_policies(model_spec), key=lambda name: name != options.preferred)
    requested, names = _parse_policies(options.policies, defaults)
    if options.thresholds is not None and not options.policies:
        raise BadValue("`thresholds=` needs one policy; choose it with `policy=`.")
    if options.patience is not None and "patience" not in names:
        raise BadValue("`patience=` needs the policy patience; add `policy='patience'`.")
    if requested is not None:
        model_spec = requested.fitted_spec(model_spec)
    grids = {name: grid(name, model_spec, thresholds=options.thresholds, patience=options.patience) for name in names}
    chosen = requested or _model_policy(runner)
    return Plan(grids, None if chosen is None else runner.config.resolve_policy(chosen))


def build_results(
    scorer: Scorer,
    runner: Runner,
    data: TaskRows,
    plan: Plan,
    options: EvaluationOptions,
) -> Evaluation:
    """Return all results of an evaluation."""
    trace, config = scorer.trace, runner.config
    curves = {name: scorer.curve(policies) for name, policies in plan.grids.items()}
    policy = plan.chosen or parse(cheapest(next(iter(curves.values())), DEFAULT_CHANGED).policy)
    about = trace.about
    results = Evaluation(
        parse_json_as(ModelFacts, about["model"] | {"policy": str(config.exit_policy), "name": runner.name}),
        parse_json_as(DataFacts, about["data"] | {"metrics": list(data.metrics)}),
        scorer.exits(),
        curves,
        scorer.curve(grid("layer", trace.model_spec)),
        offramp=about["offramp"],
        machine=parse_json_as(MachineFacts, about["machine"]),
        oracle=scorer.oracle() or None,
        chosen=scorer.operating_point(policy),
        picked_here=plan.chosen is None,
        reference=_reference(trace),
        tolerance=scorer.tolerance,
        elue=Elue(options.elue_length, track(about["model"]["parameters"])),
        examples=extremes(trace, data, policy, scorer.tolerance),
        classes=class_results(trace, trace.replay(policy).answers, _bands(config.calibrated)),
        calibration=config.calibrated if policy == config.exit_policy else None,
        width=width_report(config, trace, policy),
        questions=_official_scores(trace, data, policy),
    )
    if not options.live:
        return results
    policies = policies_to_time(results)
    return add_timings(results, trace, policies, time_policies(runner, data.rows.texts, policies))


def _bands(calibrated: Any) -> Sequence[float]:
    """Return the bands of values that a guarantee about a regression limits."""
    return ((calibrated or {}).get("guarantee") or {}).get("bands") or ()


def _reference(trace: Trace) -> str | None:
    """Return the name of the reference; None for the full model."""
    name = (trace.about.get("reference") or {}).get("name")
    return None if name == FULL_DEPTH else name


def _official_scores(trace: Trace, data: TaskRows, policy: Policy) -> dict[str, dict[str, float]] | None:
    """Return the official scores of the full model and of the chosen policy, if the task has any."""
    rows = data.rows
    answers = {"full": trace.full, "chosen": trace.replay(policy).answers}
    scores = trace.answer_type.official_scores(answers, rows.ids, rows.labels)
    if scores is None or trace.decoding.no_answer is None or trace.group is None or trace.labels is None:
        return scores
    last = trace.rows_at_exit(-1)
    best = trace.answer_type.tuned_scores(last, np.asarray(trace.group), trace.examples or (), trace.labels)
    return scores | {"best": best}


def _parse_policies(policies: Sequence[str], defaults: list[str]) -> tuple[Policy | None, list[str]]:
    """Return the policy that has numbers, if any, and the names of the curves."""
    chosen = [policy for policy in policies if ":" in policy]
    if len(chosen) > 1:
        raise BadValue(f"Only one policy may have numbers, got {', '.join(chosen)}; name the others without numbers.")
    names = [policy.split(":")[0] for policy in policies] or defaults
    return (parse(chosen[0]) if chosen else None), list(dict.fromkeys(names))


def _model_policy(runner: Runner) -> Policy | None:
    policy = runner.config.exit_policy
    return None if isinstance(policy, Never) else policy


def policies_to_time(results: Evaluation) -> list[Policy]:
    """Return the operating point's policy and two more points of its curve."""
    assert results.chosen is not None
    curve = results.policies.get(parse(results.chosen.policy).name, [])
    texts = [results.chosen.policy, *(point.policy for point in _middle_points(curve))]
    return [parse(text) for text in dict.fromkeys(texts)]


def add_timings(
    results: Evaluation, trace: Trace, policies: Sequence[Policy], timings: Timings, plain: Runner | None = None
) -> Evaluation:
    """Return the results with timings of policies and of the plain model, which may be another one (`plain`)."""
    assert results.chosen is not None
    points = {point.policy: point for curve in results.policies.values() for point in curve}
    points[results.chosen.policy] = results.chosen
    timed = []
    for policy, seconds in zip(policies, timings.policies, strict=True):
        rows = timings.rows if trace.group is None else np.isin(trace.group, timings.rows)
        cost = layer_cost(trace.replay(policy).layer[rows], trace.depth)
        values = {field.name: getattr(points[str(policy)], field.name) for field in fields(Point)}
        values |= {"mean_layers": cost.mean_layers, "cost": cost.layers_run, "saving": cost.saved}
        values |= {"seconds": seconds.wall, "speedup": cost.speedup if cost.mean_layers else None}
        timed.append(LivePoint(**values, measured_speedup=timings.full[0].wall / seconds.wall))
    seconds_of = {point.policy: point.seconds for point in timed}
    return replace(
        results,
        chosen=replace(results.chosen, seconds=seconds_of.get(results.chosen.policy)),
        policies={
            name: [replace(point, seconds=seconds_of.get(point.policy)) for point in points]
            for name, points in results.policies.items()
        },
        live=timed,
        plain_seconds=timings.full[0].wall,
        live_rows=len(timings.rows),
        plain_name=None if plain is None else f"{Path(plain.name).name}, {plain.backend} {plain.dtype}",
    )


def _middle_points(curve: list[Point]) -> list[Point]:
    """Return two points that divide the cost range of a curve into thirds."""
    if not curve:
        return []
    low, high = (bound(point.mean_layers for point in curve) for bound in (min, max))
    costs = (low + (high - low) / 3, low + 2 * (high - low) / 3)
    return [min(curve, key=lambda point: abs(point.mean_layers - cost)) for cost in costs]
