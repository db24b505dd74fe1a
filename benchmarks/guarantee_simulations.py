"""How often guarantees are violated and how much they save, in simulated calibrations.

    python benchmarks/guarantee_simulations.py [--runs 1000] [--only class-2 groups]

Every path through the public functions is simulated: rows are drawn from a population with known risks, a policy is
chosen as `calibrate`, `tune` or `adapt` would, and its true risk is compared with the guarantee. Paths that are known
to be wrong (marked "wrong") show that the simulation catches them. Finished paths are skipped; delete a record in
benchmarks/results/simulations to repeat it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from tests.simulated_traces import Outcome, judge, population, rankings, sample

from offramp.adaptation.texts import UserTexts, split_texts
from offramp.calibration.choice import CalibrationOptions, choose, choose_with_guarantee
from offramp.calibration.estimate_errors import fit_errors
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.choosing import TuneOptions, candidates, settings_to_test
from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.threshold_grids import with_exits
from offramp.core.machine import cpu_name
from offramp.evaluation.traces.trace import Trace
from offramp.policies.grids import fine_grid

RESULTS = Path(__file__).parent / "results" / "simulations"
ROWS = 40_000  # of a population
QUERIES = 3_000  # of a population of rankings
FREQUENT = 40  # texts that make up a share of the traffic

NAMES = ["".join(chr(97 + row // 26**place % 26) for place in range(4)) for row in range(ROWS)]  # different words
NUMBERS = {name: row for row, name in enumerate(NAMES)}

Run = Callable[[np.random.Generator], Outcome]


@dataclass(frozen=True)
class Procedure:
    """A way to calibrate; `prepare` returns a function that simulates one calibration."""

    name: str
    title: str
    prepare: Callable[[], Run]
    is_wrong: bool = False
    guaranteed: str = "2 %, 90 %"


def calibrated(
    guarantee: Guarantee, *policies: str, rows: int = 1000, rare: float = 0.4, per_exit: bool = False
) -> Callable[[], Run]:
    """Return a path of `calibrate` with these policies."""

    def prepare() -> Run:
        whole, options = population(rare, ROWS, seed=1), CalibrationOptions(policies, per_exit)

        def run(generator: np.random.Generator) -> Outcome:
            choice = choose(sample(whole, rows, generator), guarantee, options, "")
            return judge(with_model(whole, choice.trace), choice.policy, guarantee, tested_limits(choice.evidence))

        return run

    return prepare


def with_model(whole: Trace, trace: Trace) -> Trace:
    """Return the population with the risk model of a trace."""
    return replace(whole, risk_model=trace.risk_model)


def tested_limits(evidence: dict[str, Any]) -> set[str]:
    """Return the names of the limits that a calibration guaranteed."""
    return {limit["name"] for limit in evidence.get("limits", ()) if limit["tested"]}


def adapted(guarantee: Guarantee, rare: float = 0.4) -> Callable[[], Run]:
    """Return the path of `adapt` and `tune`: choose exits and policy on 500 rows, test on 1,000 others."""

    def prepare() -> Run:
        whole = population(rare, ROWS, seed=2)
        exits = len(whole.points)
        per_call, per_row = np.eye(4)[:2]
        costs = Costs(np.tile(1e-3 * per_row, (exits, 1)), 1e-4 * per_call, 1e-4 * per_call)

        def run(generator: np.random.Generator) -> Outcome:
            search = sample(whole, 500, generator)
            ranked = candidates(search, guarantee, costs, TuneOptions(), range(exits - 1))
            if not ranked:
                return judge(whole, None, guarantee)
            kept = ranked[0].exit_indices
            test, settings = settings_to_test(with_exits(sample(whole, 1000, generator), kept), ranked[0].policy)
            choice = choose_with_guarantee(test, guarantee, settings, "")
            return judge(
                with_model(with_exits(whole, kept), test), choice.policy, guarantee, tested_limits(choice.evidence)
            )

        return run

    return prepare


def referenced(guarantee: Guarantee) -> Callable[[], Run]:
    """Return the path of `--reference`: predictions are compared with a model that the last exit differs from."""

    def prepare() -> Run:
        whole = population(0.4, ROWS, seed=3)
        flipped = np.random.default_rng(0).random(len(whole)) < 0.008
        whole = replace(whole, reference=np.where(flipped, 1 - whole.full, whole.full))

        def run(generator: np.random.Generator) -> Outcome:
            choice = choose(sample(whole, 1000, generator), guarantee, CalibrationOptions(("entropy",)), "")
            return judge(whole, choice.policy, guarantee)

        return run

    return prepare


def grouped(correlation: float, knows: bool) -> Callable[[], Run]:
    """Return the path of rows in documents of ten; `knows` whether the calibration groups them."""

    def prepare() -> Run:
        whole = population(0.4, ROWS, seed=4, documents=ROWS // 10, shared=correlation)
        guarantee = Guarantee(risk=0.02, group="document" if knows else None)

        def run(generator: np.random.Generator) -> Outcome:
            trace = sample(whole, 2000, generator)
            trace = trace if knows else replace(trace, clusters=None)
            choice = choose(trace, guarantee, CalibrationOptions(("entropy",)), "")
            return judge(replace(whole, clusters=None), choice.policy, Guarantee(risk=0.02))

        return run

    return prepare


def traffic(share: float, count: str) -> Callable[[], Run]:
    """Return the path of traffic in which 40 texts make up a share of the rows, split as `adapt` splits it."""

    def prepare() -> Run:
        whole = population(0.4, ROWS, seed=5)
        guarantee = Guarantee(risk=0.02, count=count)

        def run(generator: np.random.Generator) -> Outcome:
            frequent = generator.integers(ROWS, size=FREQUENT)  # other frequent texts in every run
            is_frequent = generator.random(5000) < share
            rows = np.where(is_frequent, generator.choice(frequent, 5000), generator.integers(ROWS, size=5000))
            splits = split_texts(UserTexts([NAMES[row] for row in rows], None), guarantee, np.empty(0, np.uint64))
            test = whole.take(np.array([NUMBERS[str(text)] for text in splits.test]))
            choice = choose(test, guarantee, CalibrationOptions(("entropy",)), "")
            parts = (judge(part, choice.policy, guarantee) for part in (whole.take(frequent), whole))
            often, seldom = parts
            risk = share * often.risk + (1 - share) * seldom.risk
            return Outcome(risk > guarantee.risk, risk, share * often.layers + (1 - share) * seldom.layers)

        return run

    return prepare


def ranked(guarantee: Guarantee, queries: int = 400, choosing: bool = False) -> Callable[[], Run]:
    """Return the path of `calibrate --policy top-k`, or with `choosing` that of `adapt`, on so many queries."""

    def prepare() -> Run:
        whole = rankings(QUERIES, guarantee.top_k or 1, seed=6)
        exits = len(whole.points)
        costs = Costs(np.tile(1e-3 * np.eye(4)[1], (exits, 1)), 1e-4 * np.eye(4)[0], 1e-4 * np.eye(4)[0])

        def run(generator: np.random.Generator) -> Outcome:
            drawn = sample(whole, queries, generator)
            if not choosing:
                choice = choose(drawn, guarantee, CalibrationOptions(("top-k",)), "")
                return judge(whole, choice.policy, guarantee)
            search, test = drawn.take(np.arange(queries // 4)), drawn.take(np.arange(queries // 4, queries))
            best = candidates(search, guarantee, costs, TuneOptions(policy="top-k"), range(exits - 1))
            if not best:
                return judge(whole, None, guarantee)
            kept = with_exits(whole, best[0].exit_indices)
            trace, settings = settings_to_test(with_exits(test, best[0].exit_indices), best[0].policy)
            return judge(kept, choose_with_guarantee(trace, guarantee, settings, "").policy, guarantee)

        return run

    return prepare


def ranked_without_test(guarantee: Guarantee, queries: int = 400) -> Callable[[], Run]:
    """Return the wrong path: the smallest margin whose observed risk is within the guarantee."""

    def prepare() -> Run:
        whole = rankings(QUERIES, guarantee.top_k or 1, seed=6)

        def run(generator: np.random.Generator) -> Outcome:
            drawn = sample(whole, queries, generator)
            trace, policy = replace(drawn, errors=fit_errors(drawn)), None
            for setting in fine_grid("top-k", trace.model_spec):  # from safe to risky
                if Risk(guarantee, trace).losses(trace.replay(setting)).mean() > guarantee.risk:
                    break
                policy = setting
            return judge(whole, policy, guarantee)

        return run

    return prepare


OVERALL = Guarantee(risk=0.02)
CLASSES = replace(OVERALL, class_risk=0.1)
RECALL = Guarantee(risk=0.05, keep=("class 1",), recall=0.95)
FLAGGED = "5 % and 95 %, 90 %"
PRECISION = Guarantee(risk=0.05, keep=("class 1",), precision=0.95)
TOP_10, RANKED = Guarantee(risk=0.05, top_k=10, test="betting"), "5 %, 90 %"
TOP_1 = Guarantee(risk=0.05, top_k=1)
PATHS = [
    Procedure("calibrate", "`calibrate`, entropy", calibrated(OVERALL, "entropy")),
    Procedure("calibrate-2400", "the same on 2,400 rows", calibrated(OVERALL, "entropy", rows=2400)),
    Procedure("auto", "`calibrate --policy auto`", calibrated(OVERALL, "entropy", "risk")),
    Procedure("per-exit", "`calibrate --per-exit`", calibrated(OVERALL, "entropy", per_exit=True)),
    Procedure("adapt", "`adapt`, `tune`: choose, then test", adapted(OVERALL)),
    Procedure("reference", "`calibrate --reference`", referenced(OVERALL)),
    Procedure("class-5", "class of 5 %, limit 10 %", calibrated(CLASSES, "entropy", rare=0.05)),
    Procedure("class-2", "class of 2 %, limit 10 %", calibrated(CLASSES, "entropy", rows=2400, rare=0.02)),
    Procedure("class-2-none", "class of 2 %, no limit", calibrated(OVERALL, "entropy", rows=2400, rare=0.02)),
    Procedure("class-auto", "class of 5 %, `--policy auto`", calibrated(CLASSES, "entropy", "risk", rare=0.05)),
    Procedure("class-adapt", "class of 5 %, choose, then test", adapted(CLASSES, rare=0.05)),
    Procedure("recall", "recall 95 %", calibrated(RECALL, "entropy", rare=0.2), guaranteed=FLAGGED),
    Procedure("precision", "precision 95 %", calibrated(PRECISION, "entropy", rare=0.2), guaranteed=FLAGGED),
    Procedure("groups-10", "documents of 10 rows, correlation of the scores 0.1", grouped(0.1, True)),
    Procedure("groups-25", "documents of 10 rows, correlation of the scores 0.25", grouped(0.25, True)),
    Procedure("groups-70", "documents of 10 rows, correlation of the scores 0.7", grouped(0.7, True)),
    Procedure("groups-70-wrong", "the same, rows tested as if independent", grouped(0.7, False), is_wrong=True),
    Procedure("traffic-30", "30 % of the traffic in 40 texts", traffic(0.3, "rows")),
    Procedure("traffic-60", "60 % of the traffic in 40 texts", traffic(0.6, "rows")),
    Procedure("traffic-60-wrong", "the same, unique texts counted", traffic(0.6, "texts"), is_wrong=True),
    Procedure("top-k", "`calibrate --policy top-k`, 400 queries with ties, top 10", ranked(TOP_10), guaranteed=RANKED),
    Procedure("top-k-1", "`calibrate --policy top-k`, 400 queries with ties, top 1", ranked(TOP_1), guaranteed=RANKED),
    Procedure(
        "top-k-changed",
        "`calibrate --policy top-k --risk-type changed`, top 5",
        ranked(Guarantee("changed", risk=0.05, top_k=5)),
        guaranteed=RANKED,
    ),
    Procedure("top-k-adapt", "`adapt` of a reranker, top 10", ranked(TOP_10, choosing=True), guaranteed=RANKED),
    Procedure(
        "top-k-wrong",
        "top 10, the margin chosen by its observed risk",
        ranked_without_test(TOP_10),
        is_wrong=True,
        guaranteed=RANKED,
    ),
    Procedure(
        "average", "`--on-average`", calibrated(replace(OVERALL, average=True), "entropy"), guaranteed="2 % on average"
    ),
]


def simulate(path: Procedure, runs: int) -> dict[str, Any]:
    """Return how often a path violates its guarantee, and its mean risk and layers."""
    run, start, outcomes = path.prepare(), time.monotonic(), []
    for number in range(runs):
        outcomes.append(run(np.random.default_rng([7, number])))
    violated = float(np.mean([outcome.violated for outcome in outcomes]))
    return {
        "path": path.name,
        "title": path.title,
        "guaranteed": path.guaranteed,
        "wrong": path.is_wrong,
        "runs": runs,
        "violated": violated,
        "error": math.sqrt(violated * (1 - violated) / runs),
        "mean_risk": float(np.mean([outcome.risk for outcome in outcomes])),
        "mean_layers": float(np.mean([outcome.layers for outcome in outcomes])),
        "mean_lost": float(np.mean([outcome.lost for outcome in outcomes])),
        "depth": 6,
        "seconds": time.monotonic() - start,
        "date": f"{date.today()}",
        "cpu": cpu_name(),
    }


def main() -> None:
    """Simulate all paths, or those named by --only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path in PATHS:
        record = RESULTS / f"{path.name}.json"
        if (args.only and path.name not in args.only) or record.is_file():
            continue
        result = simulate(path, args.runs)
        record.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        print(f"{path.name}: violated {result['violated']:.3f}, risk {result['mean_risk']:.4f}", flush=True)


if __name__ == "__main__":
    main()
