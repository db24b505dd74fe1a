"""`evaluate(runner, data)`: a trace, its curves, a few points run live, and a folder with everything in it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from offramp.answers.overlap import f1
from offramp.answers.span_answers import answers_of, texts_of
from offramp.core.runner import Runner
from offramp.data.questions import Question
from offramp.data.rows import TaskRows
from offramp.errors import BadValue
from offramp.evaluation.grids import fitting, grid
from offramp.evaluation.points import Chosen, Point, Scorer, cheapest
from offramp.evaluation.reference import named_reference, reference_for
from offramp.evaluation.timing import race
from offramp.evaluation.traces.about import FULL_DEPTH, check_labels, check_reference, check_trace, of_data
from offramp.evaluation.traces.reading import read_trace
from offramp.evaluation.traces.recording import record
from offramp.evaluation.traces.trace import Trace
from offramp.files.ours import RUN
from offramp.files.writing import staged_folder
from offramp.originals.elue import LENGTH, flops_per_exit, track
from offramp.originals.squad.scores import squad_scores
from offramp.originals.width.report import width_of_rows
from offramp.policies import Judged, Never, Policy, parse
from offramp.report import figures
from offramp.report.extremes import extremes
from offramp.report.files import write_files
from offramp.report.page import render

__all__ = ["EvaluationOptions", "evaluate", "obtain_trace"]

TRACE = "trace.safetensors"
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
    output: Path,
    options: EvaluationOptions,
    *,
    trace_file: Path | None = None,
    overwrite: bool = False,
    command: str = "",
) -> dict[str, Any]:
    """Evaluate a model on labelled rows (or on texts alone: then against its own full answers)."""
    plan = planned(runner, options)
    if trace_file is not None and trace_file.resolve().parent == output.resolve():
        raise BadValue(f"{trace_file} lies in the folder that is to be replaced; copy it to another place first.")
    with staged_folder(output, overwrite, RUN, "an evaluation") as folder:
        trace = obtain_trace(runner, data, trace_file or folder / TRACE, options.reference)
        passing = flops_per_exit(runner.config, options.elue_length)
        alone = flops_per_exit(runner.config, options.elue_length, alone=True)
        elue = None if passing is None or alone is None else (passing, alone)
        scorer = Scorer(trace, data.metrics, elue, options.tolerance)
        results = scored(scorer, runner, data, plan, options)
        results |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
        write_files(folder, results)
        draw(folder, results)
        (folder / "report.html").write_text(render(results), encoding="utf-8")
    return results


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
        if reference is None and not data.task.spans:
            reference = reference_for(runner, texts)
        trace = record(runner, texts, labels, file, data.name, names=names, reference=reference)
    if not data.task.spans:
        return trace
    trace = trace.with_questions([text[1] for text in texts], labels)
    reference = reference_for(runner, texts)  # texts of answers, which a trace does not keep
    return trace if reference is None else replace(trace, reference=reference.answers)


@dataclass(frozen=True)
class Plan:
    """Which policies are drawn, and which one is the operating point (none: the cheapest that hardly differs)."""

    grids: dict[str, list[Policy]]
    chosen: Policy | None


def planned(runner: Runner, options: EvaluationOptions) -> Plan:
    """The options as policies; whatever is wrong with them is said before the model runs."""
    shape = runner.config.shape
    if options.tolerance is not None and not shape.answer_type.is_regression:
        raise BadValue("A tolerance is for regressions, which this model is not; leave it out.")
    if not 1 <= options.elue_length <= LONGEST:
        raise BadValue(f"elue-length is {options.elue_length}; it is from 1 to {LONGEST:,}.")
    given, names = _given(options.policies, fitting(shape))
    if options.thresholds is not None and not options.policies:
        raise BadValue("Thresholds mean something else in each policy; name one with --policy.")
    if options.patience is not None and "patience" not in names:
        raise BadValue("--patience is for the policy patience, which is not drawn; add --policy patience.")
    if isinstance(given, Judged) and given.is_fitted:  # with a judge of its own
        shape = replace(shape, judge=(given.offsets, given.slopes))
    grids = {name: grid(name, shape, thresholds=options.thresholds, patience=options.patience) for name in names}
    chosen = given or _own_policy(runner)
    return Plan(grids, None if chosen is None else runner.config.choose(chosen))


def scored(
    scorer: Scorer,
    runner: Runner,
    data: TaskRows,
    plan: Plan,
    options: EvaluationOptions,
    against: Runner | None = None,
) -> dict[str, Any]:
    """Everything that a report tells, as plain values; `against` is what seconds are compared with."""
    trace, config = scorer.trace, runner.config
    lines = {name: scorer.curve(policies) for name, policies in plan.grids.items()}
    policy = plan.chosen or parse(cheapest(next(iter(lines.values())), USUAL).policy)
    chosen = scorer.choose(policy)
    about = {key: trace.about[key] for key in ("offramp", "model", "data", "machine")}
    about["model"] = about["model"] | {"policy": str(config.exit_policy), "name": runner.name}
    about["data"] = about["data"] | {"metrics": list(data.metrics)}
    results = about | {
        "exits": [asdict(exit_) for exit_ in scorer.exits()],
        "policies": {name: [asdict(point) for point in points] for name, points in lines.items()},
        "static": [asdict(point) for point in scorer.curve(grid("layer", trace.shape))],
        "oracle": [asdict(point) for point in scorer.oracle()] or None,
        "chosen": flat(chosen),
        "picked_here": plan.chosen is None,
        "reference": _reference(trace),
        "tolerance": scorer.tolerance,
        "elue": {"length": options.elue_length, "track": track(trace.about["model"]["parameters"])},
        "examples": extremes(trace, data, policy, scorer.tolerance),
        "calibration": config.calibrated if policy == config.exit_policy else None,
        "width": width_of_rows(config, trace, policy),
        "questions": _official(trace, data, policy),
    }
    if options.live:
        results |= live(runner, data, trace, [chosen.point, *_along(lines.get(policy.name, []))], against)
        seconds = {point["policy"]: point["seconds"] for point in results["live"]}
        for point in (results["chosen"], *itertools.chain(*results["policies"].values())):
            point["seconds"] = seconds.get(point["policy"])
    return results


def _reference(trace: Trace) -> str | None:
    """Whose answers these are compared with, where not the full model's."""
    name = (trace.about.get("reference") or {}).get("name")
    return None if name == FULL_DEPTH else name


def _official(trace: Trace, data: TaskRows, policy: Policy) -> dict[str, dict[str, float]] | None:
    """SQuAD's own scores of the full model and of the chosen point, in percent; None for other answers."""
    rows = data.rows
    if trace.question is None or rows.labels is None or rows.ids is None:
        return None
    asked = [
        Question(name, text[0], text[1], golds, impossible=not golds)
        for name, text, golds in zip(rows.ids, rows.texts, rows.labels, strict=True)
    ]
    answers = {"full": trace.full, "chosen": trace.replay(policy).answers}
    told = {name: squad_scores(asked, dict(zip(rows.ids, texts, strict=True))) for name, texts in answers.items()}
    return told if trace.about["model"]["no_answer"] is None else told | {"best": _best_null(trace)}


def _best_null(trace: Trace) -> dict[str, float]:
    """The full model's best `no_answer` on these rows, and its F1 then."""
    assert trace.contexts is not None and trace.labels is not None
    found = answers_of(trace.logits[:, -1], np.asarray(trace.question))
    texts = texts_of(found, trace.contexts)
    said, none = (
        np.array([f1(text, golds) for text, golds in zip(each, trace.labels, strict=True)])
        for each in (texts, [""] * len(texts))
    )
    order = np.argsort(found.null, kind="stable")
    values = none.sum() + np.cumsum([0.0, *(said - none)[order]])  # the first so many are answered
    most = int(values.argmax())
    odds = found.null[order]
    edges = np.array([odds[0] - 1, *odds, odds[-1] + 1])
    number = float((edges[most] + edges[most + 1]) / 2) if 0 < most < len(odds) else float(edges[most + (most > 0)])
    reached = np.where(found.null > number, none, said).mean()  # of equal odds all or none are answered
    return {"no_answer": number, "f1": 100 * float(reached)}


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


def flat(chosen: Chosen) -> dict[str, Any]:
    """The chosen point and its intervals in one."""
    return asdict(chosen.point) | {key: value for key, value in asdict(chosen).items() if key != "point"}


def live(
    runner: Runner, data: TaskRows, trace: Trace, points: list[Point], against: Runner | None = None
) -> dict[str, Any]:
    """Seconds of some points and of the plain model; layers beside them are of the same rows."""
    by_policy = {point.policy: point for point in points}
    policies = [parse(policy) for policy in by_policy]
    timing = race(runner, data.rows.texts, policies, against=against)
    timed = []
    for point, policy, seconds in zip(by_policy.values(), policies, timing.seconds, strict=True):
        rows = timing.places if trace.question is None else np.isin(trace.question, timing.places)
        layers = float(trace.replay(policy).layer[rows].mean())
        there = {"mean_layers": layers, "speedup": trace.depth / layers, "cost": layers / trace.depth}
        there["saving"] = 1 - there["cost"]
        timed.append(asdict(point) | there | {"seconds": seconds, "measured_speedup": timing.plain / seconds})
    plain = {} if against is None else {"plain_name": f"{Path(against.name).name}, {against.backend} {against.dtype}"}
    return {"live": timed, "plain_seconds": timing.plain, "live_rows": len(timing.places), **plain}


def _along(line: list[Point]) -> list[Point]:
    """Two points that cut a curve's range of costs into thirds."""
    if not line:
        return []
    low, high = (most(point.mean_layers for point in line) for most in (min, max))
    costs = (low + (high - low) / 3, low + 2 * (high - low) / 3)
    return [min(line, key=lambda point: abs(point.mean_layers - cost)) for cost in costs]


def draw(folder: Path, results: dict[str, Any]) -> None:
    """The curve and the histogram."""
    metrics = results["data"]["metrics"]
    figures.curves(
        folder,
        list(results["policies"].items()),
        metrics[0] if metrics else None,
        title=f"{Path(results['model']['name']).name}, {results['data']['name']}",
        exits=[("one exit for all", results["static"])],
        oracle=("oracle", results["oracle"]) if results["oracle"] else None,
        chosen=results["chosen"],
    )
    layers = [exit_["layer"] for exit_ in results["exits"]]
    figures.histogram(folder, layers, results["chosen"]["exits"], results["chosen"]["policy"])
