"""`evaluate(model, rows)`: a trace, its curves, a few points run live, and a folder with everything in it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offramp.elue import LENGTH, flops_per_exit, track
from offramp.errors import BadValue
from offramp.fingerprints import check_trace, of_data
from offramp.flops import count_flops
from offramp.grids import fitting, grid
from offramp.judge import Chosen, Judge, Point, cheapest, shape_of, shape_of_model
from offramp.model import AdaptiveModel
from offramp.policies import Never, Policy, parse
from offramp.questions import Given, Questions, ask
from offramp.recording import record
from offramp.report import figures
from offramp.report.extremes import extremes
from offramp.report.files import RESULTS, write_files
from offramp.report.page import render
from offramp.stepper import Problem
from offramp.timing import race
from offramp.trace import Trace, read_trace
from offramp.writing import check_free, staged_folder

__all__ = ["Wanted", "evaluate", "obtain_trace"]

TRACE = "trace.safetensors"
USUAL = 0.02  # answers that may differ, where nobody chose a policy


@dataclass(frozen=True)
class Wanted:
    """What a user may ask of an evaluation."""

    policies: tuple[str, ...] = ()  # names; or one with its numbers, which is then the chosen one
    thresholds: tuple[float, ...] | None = None
    patience: tuple[int, ...] | None = None
    tolerance: float | None = None  # of a regression: how far apart two values still agree
    elue_length: int = LENGTH
    live: bool = True


def evaluate(
    name: str,
    given: Given,
    output: Path,
    wanted: Wanted,
    *,
    trace_file: Path | None = None,
    run: Path | None = None,
    overwrite: bool = False,
    command: str = "",
) -> dict[str, Any]:
    """Evaluate a model on labelled rows (or on texts alone: then against its own full answers).

    `run` is the training's folder, where that is not the model's: it tells which rows are meant.
    """
    check_free(output, overwrite)
    model: AdaptiveModel = AdaptiveModel.from_pretrained(name)
    questions = ask(name, model.config, given, "dev", run)
    plan = planned(model, wanted)
    with staged_folder(output, overwrite, RESULTS) as folder:
        trace = obtain_trace(model, questions, trace_file or folder / TRACE)
        passing = flops_per_exit(model.config, wanted.elue_length)
        alone = flops_per_exit(model.config, wanted.elue_length, alone=True)
        elue = None if passing is None or alone is None else (passing, alone)
        judge = Judge(trace, questions.metrics, count_flops(model), elue, wanted.tolerance)
        results = judged(judge, model, questions, plan, wanted)
        results |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
        write_files(folder, results)
        draw(folder, results)
        (folder / "report.html").write_text(render(results), encoding="utf-8")
    return results


def obtain_trace(model: AdaptiveModel, questions: Questions, file: Path) -> Trace:
    """Read the trace, if it is there and of this model and these rows; else record it there."""
    if file.exists():
        trace = read_trace(file)
        check_trace(trace, file, model, of_data(questions.rows.texts, questions.labels, questions.task.labels))
        return trace
    labels, names = questions.labels, questions.task.labels
    return record(model, questions.rows.texts, labels, file, questions.name, names=names)


@dataclass(frozen=True)
class Plan:
    """Which policies are drawn, and which one is the operating point (none: the cheapest that hardly differs)."""

    grids: dict[str, list[Policy]]
    chosen: Policy | None


def planned(model: AdaptiveModel, wanted: Wanted) -> Plan:
    """The wishes as policies; whatever is wrong with them is said before the model runs."""
    shape = shape_of_model(model)
    if wanted.tolerance is not None and shape.problem is not Problem.REGRESSION:
        raise BadValue("A tolerance is for regressions, and this model answers with labels; leave it out.")
    if wanted.elue_length < 1:
        raise BadValue(f"elue-length is {wanted.elue_length}; it is at least 1.")
    given, names = _given(wanted.policies, fitting(shape))
    if wanted.thresholds is not None and not wanted.policies:
        raise BadValue("Thresholds mean something else in each policy; name one with --policy.")
    if wanted.patience is not None and "patience" not in names:
        raise BadValue("--patience is for the policy patience, which is not drawn; add --policy patience.")
    grids = {one: grid(one, shape, thresholds=wanted.thresholds, patience=wanted.patience) for one in names}
    chosen = given or _own_policy(model)
    return Plan(grids, None if chosen is None else model.choose(chosen))


def judged(judge: Judge, model: AdaptiveModel, questions: Questions, plan: Plan, wanted: Wanted) -> dict[str, Any]:
    """Everything that a report tells, as plain values."""
    trace = judge.trace
    lines = {name: judge.curve(policies) for name, policies in plan.grids.items()}
    policy = plan.chosen or parse(cheapest(next(iter(lines.values())), USUAL).policy)
    chosen = judge.choose(policy)
    about = {key: trace.about[key] for key in ("offramp", "model", "data", "machine")}
    about["model"] = about["model"] | {"policy": str(model.config.exit_policy), "name": str(model.name_or_path)}
    about["data"] = about["data"] | {"metrics": list(questions.metrics)}
    results = about | {
        "exits": [asdict(one) for one in judge.exits()],
        "policies": {name: [asdict(point) for point in points] for name, points in lines.items()},
        "static": [asdict(point) for point in judge.curve(grid("layer", shape_of(trace)))],
        "oracle": [asdict(point) for point in judge.oracle()] or None,
        "chosen": flat(chosen),
        "picked_here": plan.chosen is None,
        "tolerance": judge.tolerance,
        "elue": {"length": wanted.elue_length, "track": track(trace.about["model"]["parameters"])},
        "examples": extremes(trace, questions, policy),
        "calibration": model.config.calibrated if policy == model.config.exit_policy else None,
    }
    if wanted.live:
        results |= live(model, questions, trace, [chosen.point, *_along(lines.get(policy.name, []))])
        seconds = {point["policy"]: point["seconds"] for point in results["live"]}
        for point in (results["chosen"], *itertools.chain(*results["policies"].values())):
            point["seconds"] = seconds.get(point["policy"])
    return results


def _given(wanted: Sequence[str], known: list[str]) -> tuple[Policy | None, list[str]]:
    """The chosen policy, where one is written with numbers, and the names of the curves."""
    chosen = [one for one in wanted if ":" in one]
    if len(chosen) > 1:
        raise BadValue(f"One policy can be chosen, not {len(chosen)} ({', '.join(chosen)}); name the others alone.")
    names = [one.split(":")[0] for one in wanted] or known
    return (parse(chosen[0]) if chosen else None), list(dict.fromkeys(names))


def _own_policy(model: AdaptiveModel) -> Policy | None:
    policy = model.config.exit_policy
    return None if isinstance(policy, Never) else policy


def flat(chosen: Chosen) -> dict[str, Any]:
    """The chosen point and its intervals in one."""
    return asdict(chosen.point) | {key: value for key, value in asdict(chosen).items() if key != "point"}


def live(model: AdaptiveModel, questions: Questions, trace: Trace, points: list[Point]) -> dict[str, Any]:
    """Seconds of some points and of the plain model; layers beside them are of the same rows."""
    wanted = {point.policy: point for point in points}
    policies = [parse(policy) for policy in wanted]
    found = race(model, questions.rows.texts, policies)
    timed = []
    for point, policy, seconds in zip(wanted.values(), policies, found.seconds, strict=True):
        layers = float(trace.leave(policy).layer[found.places].mean())
        there = {"mean_layers": layers, "speedup": trace.depth / layers, "cost": layers / trace.depth}
        there["saving"] = 1 - there["cost"]
        timed.append(asdict(point) | there | {"seconds": seconds, "measured_speedup": found.plain / seconds})
    return {"live": timed, "plain_seconds": found.plain, "live_rows": len(found.places)}


def _along(line: list[Point]) -> list[Point]:
    """Two points that cut a curve's range of costs into thirds."""
    if not line:
        return []
    low, high = (most(point.mean_layers for point in line) for most in (min, max))
    wanted = (low + (high - low) / 3, low + 2 * (high - low) / 3)
    return [min(line, key=lambda point: abs(point.mean_layers - cost)) for cost in wanted]


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
    layers = [one["layer"] for one in results["exits"]]
    figures.histogram(folder, layers, results["chosen"]["exits"], results["chosen"]["policy"])
