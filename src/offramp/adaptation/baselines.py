"""Full-depth int8 models: the baselines that an adapted model is compared with, in the same runtime."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.plan import AdaptPlan
from offramp.calibration.tuning.choosing import with_risk_model
from offramp.core.runner import Runner
from offramp.evaluation.points import Scorer
from offramp.evaluation.traces.trace import Trace
from offramp.exports.options import ExportOptions, Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Policy
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES

__all__ = ["Baseline", "fastest_baseline", "policy_with_agreement"]

NUM_SCALE_TEXTS = 256


@dataclass(frozen=True)
class Baseline:
    """A full-depth model, and how often its predictions are the original's on the timed texts."""

    runner: Runner
    agreement: float

    @property
    def title(self) -> str:
        """Name for messages."""
        return f"full-depth {self.runner.dtype} in {RUNTIMES[self.runner.backend].title}"


def fastest_baseline(plan: AdaptPlan, precision: str, trace: Trace, rows: NDArray[np.int64]) -> Baseline | None:
    """Return the faster full-depth model of the runtime's usual int8 and the precision of the adapted model.

    `rows` are the rows of the trace to measure on. For torch, which has no int8 here, it is None.
    """
    runtime = RUNTIMES[plan.options.tuning.backend]
    if not runtime.runs_graphs:
        return None
    usual = f"int8-{'dynamic' if 'dynamic' in runtime.scales else runtime.scales[0]}"
    texts = [plan.splits.test[row] for row in rows]
    candidates = []
    for name in dict.fromkeys((usual, precision)):
        runner = _full_depth(plan, name)
        start = time.process_time()
        answers = runner.answer(texts, policy="never", quiet=True).values
        seconds = time.process_time() - start
        changed = trace.answer_type.differ(answers, trace.expected[rows], plan.guarantee.tolerance)
        candidates.append((seconds, Baseline(runner, float(1 - changed.mean()))))
    return min(candidates, key=lambda entry: entry[0])[1]


def _full_depth(plan: AdaptPlan, precision: str) -> Runner:
    """Export the original model without early exits."""
    from offramp.exports.exporter import Exporter
    from offramp.training.imitation.new_exits import keep_exits

    model: AdaptiveModel = keep_exits(plan.model, [plan.model.config.num_layers])
    tuning, int8 = plan.options.tuning, precision.removeprefix("int8-").replace("float32", "none")
    options = ExportOptions(tuning.backend, int8, force=True, threads=tuning.threads)
    exporter = Exporter(model, Texts(plan.splits.training[:NUM_SCALE_TEXTS]), options, quiet=True)
    return replace(exporter.runner(exporter.make()), name=str(Path(plan.model_name)))


def policy_with_agreement(
    trace: Trace, policy: Policy, agreement: float, rows: NDArray[np.int64], tolerance: float | None
) -> Policy | None:
    """Return the setting with the fewest layers that agrees with the original this often on these rows, if any."""
    scorer = Scorer(trace, (), None, tolerance)
    settings = []
    for setting in grid(policy.name, with_risk_model(trace, policy).model_spec):
        replayed = trace.replay(setting)
        if scorer.agrees(replayed.answers)[rows].mean() >= agreement:
            settings.append((float(replayed.layer[rows].mean()), setting))
    return min(settings, key=lambda entry: entry[0])[1] if settings else None
