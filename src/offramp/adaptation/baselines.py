"""The model that people would use instead of early exits, in the same runtime: int8 at full depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.plan import AdaptPlan
from offramp.calibration.estimate_errors import with_errors
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
    """A full-depth model, and how much of its predictions is the original's, by row."""

    runner: Runner
    agrees: dict[int, float]

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
    changed = trace.answer_type.changes(answers, trace.expected[rows], plan.guarantee.tolerance)
    return Baseline(runner, dict(zip(rows.tolist(), (1.0 - changed).tolist(), strict=True)))


def policy_with_agreement(
    trace: Trace, policy: Policy, agreement: float, rows: NDArray[np.int64], tolerance: float | None
) -> Policy | None:
    """Return the setting with the fewest layers that agrees with the original this often on these rows, if any."""
    scorer = Scorer(trace, (), None, tolerance)
    settings = []
    fitted = with_errors(with_risk_model(trace, policy), policy)
    layers_of = np.isin(np.asarray(trace.group), rows) if trace.group is not None else rows
    for setting in grid(policy.name, fitted.model_spec):
        replayed = trace.replay(setting)
        changes = trace.answer_type.changes(replayed.answers, trace.expected, scorer.tolerance)
        if 1 - changes[rows].mean() >= agreement - 1e-9:
            settings.append((float(replayed.layer[layers_of].mean()), setting))
    return min(settings, key=lambda entry: entry[0])[1] if settings else None
