"""Full-depth int8 models: the baselines that an adapted model is compared with, in the same runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.plan import AdaptPlan
from offramp.calibration.tuning.choosing import with_risk_model
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.evaluation.points import Scorer
from offramp.evaluation.traces.trace import Trace
from offramp.exports.options import ExportOptions, Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Policy
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES

__all__ = ["Baseline", "full_depth_baselines", "policy_with_agreement"]

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


def full_depth_baselines(plan: AdaptPlan, precision: str, trace: Trace, rows: NDArray[np.int64]) -> list[Baseline]:
    """Return the full-depth model in the runtime's usual int8 and in the precision of the adapted model.

    `rows` are the rows of the trace to measure the agreement on. There are none for torch, which has no int8 here.
    """
    runtime = RUNTIMES[plan.options.tuning.backend]
    if not runtime.runs_graphs:
        return []
    usual = f"int8-{'dynamic' if 'dynamic' in runtime.scales else runtime.scales[0]}"
    texts = [plan.splits.test[row] for row in rows]
    runners = [_full_depth(plan, name) for name in dict.fromkeys((usual, precision))]
    return [Baseline(runner, _agreement(runner, texts, trace, rows, plan.guarantee.tolerance)) for runner in runners]


def _full_depth(plan: AdaptPlan, precision: str) -> Runner:
    """Export the original model without early exits."""
    from offramp.exports.exporter import Exporter
    from offramp.training.imitation.new_exits import keep_exits

    model: AdaptiveModel = keep_exits(plan.model, [plan.model.config.num_layers])
    tuning, int8 = plan.options.tuning, precision.removeprefix("int8-").replace("float32", "none")
    options = ExportOptions(tuning.backend, int8, force=True, threads=tuning.threads)
    exporter = Exporter(model, Texts(plan.splits.training[:NUM_SCALE_TEXTS]), options, quiet=True)
    return replace(exporter.runner(exporter.make()), name=str(Path(plan.model_name)))


def _agreement(
    runner: Runner, texts: list[Text], trace: Trace, rows: NDArray[np.int64], tolerance: float | None
) -> float:
    answers = runner.answer(texts, policy="never", quiet=True).values
    return float(1 - trace.answer_type.differ(answers, trace.expected[rows], tolerance).mean())


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
