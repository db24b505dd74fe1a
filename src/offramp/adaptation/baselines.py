"""The model that people would use instead of early exits, in the same runtime: int8 at full depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.plan import AdaptPlan
from offramp.calibration.tuning.choosing import with_risk_model
from offramp.core.runner import Runner
from offramp.evaluation.points import Scorer
from offramp.evaluation.traces.trace import Trace
from offramp.exports.options import ExportOptions, Texts
from offramp.policies import Policy
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.new_exits import keep_exits

if TYPE_CHECKING:
    from offramp.exports.exporter import GraphSource

__all__ = ["Baseline", "ordinary_int8", "policy_with_agreement"]


@dataclass(frozen=True)
class Baseline:
    """A full-depth model, and on which rows its predictions are the original's."""

    runner: Runner
    agrees: dict[int, bool]

    def agreement(self, rows: NDArray[np.int64]) -> float:
        """Return the fraction of these rows whose predictions are the original's."""
        return float(np.mean([self.agrees[int(row)] for row in rows]))


def ordinary_int8(
    plan: AdaptPlan, trace: Trace, rows: NDArray[np.int64], source: GraphSource | None
) -> Baseline | None:
    """Return the original model without early exits in the usual int8 of the runtime; None for torch, which has none.

    For ONNX Runtime, that is dynamic quantization. `rows` are the rows of the trace to measure the agreement on, and
    `source` is the exported graph of the model.
    """
    from offramp.exports.exporter import Exporter

    tuning = plan.options.tuning
    runtime = RUNTIMES[tuning.backend]
    if source is None:
        return None
    int8 = "dynamic" if "dynamic" in runtime.scales else runtime.scales[0]
    options = ExportOptions(tuning.backend, int8, force=True, threads=tuning.threads)
    model = keep_exits(plan.model, [plan.model.config.num_layers])
    exporter = Exporter(model, Texts(), options, quiet=True, shared=source)
    runner = exporter.runner(exporter.make())
    answers = runner.answer([plan.splits.test[row] for row in rows], policy="never", quiet=True).values
    changed = trace.answer_type.differ(answers, trace.expected[rows], plan.guarantee.tolerance)
    return Baseline(runner, dict(zip(rows.tolist(), (~changed).tolist(), strict=True)))


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
