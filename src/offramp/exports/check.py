"""Compare exported graphs with torch, exit by exit, on real texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.loop import run_all_exits
from offramp.core.progress import track
from offramp.core.runner import Runner
from offramp.core.stepper import ExitOutput, ExitPoint
from offramp.data.reading import Text
from offramp.runtimes.segments import SegmentStepper

__all__ = ["TorchComparison", "TorchOutputs", "compare_with_torch", "measure_seconds", "record_torch"]

NUM_PASSES = 4


@dataclass(frozen=True)
class TorchComparison:
    """How the predictions of an export agree with torch's."""

    rows: int
    layers: tuple[int, ...]
    agreement: tuple[float, ...]  # fraction of equal predictions per exit (regression: within a tenth of the spread)
    worst: float  # maximum difference of a logit at any exit

    def __str__(self) -> str:
        *early, full = self.agreement
        others = f", {100 * min(early):.1f} % at the worst early exit" if early else ""
        return f"agrees with PyTorch on {100 * full:.1f} % of {self.rows:,} texts at the last layer{others}"

    def select(self, layers: Sequence[int]) -> TorchComparison:
        """Return the comparison of the exits on these layers."""
        agreement = dict(zip(self.layers, self.agreement, strict=True))
        return replace(self, layers=tuple(layers), agreement=tuple(agreement[layer] for layer in layers))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as saved with an export."""
        shares = {str(layer): round(share, 6) for layer, share in zip(self.layers, self.agreement, strict=True)}
        return {"rows": self.rows, "agreement": shares, "worst": float(f"{self.worst:.3g}")}


@dataclass(frozen=True)
class TorchOutputs:
    """The outputs of torch for texts, batch by batch: of every exit the raw logits and the choices."""

    runner: Runner
    batches: list[tuple[Batch, list[tuple[Tensor, NDArray[Any]]]]]


def record_torch(runner: Runner, texts: Sequence[Text]) -> TorchOutputs:
    """Run torch on texts, for comparisons with several exports."""
    batches = []
    for chunk in runner.chunks(texts, quiet=True, title="Running PyTorch for comparison"):
        for batch in chunk.batches():
            with runner.stepper.inference_mode():
                outputs = run_all_exits(runner.stepper, batch)
            batches.append((batch, [(output.raw, _choices(output)) for output in outputs]))
    return TorchOutputs(runner, batches)


def _choices(output: ExitOutput) -> NDArray[Any]:
    choices: NDArray[Any] = output.answer_type.choice(output.logits.float()).numpy()
    return choices


def compare_with_torch(expected: TorchOutputs, stepper: SegmentStepper, points: Sequence[ExitPoint]) -> TorchComparison:
    """Run the graphs on the same batches and compare every exit."""
    graph_choices: list[list[Any]] = [[] for _ in points]
    torch_choices: list[list[Any]] = [[] for _ in points]
    worst = 0.0
    for batch, torch_outputs in track(expected.batches, "Comparing with PyTorch", "batches"):
        with expected.runner.stepper.inference_mode():
            outputs = run_all_exits(stepper, batch)
        for index, (point, output) in enumerate(zip(points, outputs, strict=True)):
            raw, choices = torch_outputs[point.number - 1]
            worst = max(worst, float((raw - output.raw).abs().max()))
            torch_choices[index].append(choices)
            graph_choices[index].append(_choices(output))
    agreement = []
    for from_graph, from_torch in zip(graph_choices, torch_choices, strict=True):
        same = stepper.answer_type.same_choices(np.concatenate(from_graph), np.concatenate(from_torch))
        agreement.append(float(same.mean()))
    rows = sum(len(choices) for choices in graph_choices[0])
    return TorchComparison(rows, tuple(point.layer for point in points), tuple(agreement), worst)


def measure_seconds(runner: Runner, steppers: Sequence[SegmentStepper], texts: Sequence[Text]) -> list[float]:
    """Return the time of each export for the texts: the minimum of several passes, taken in turns."""
    (chunk,) = runner.chunks(texts, progress=False, quiet=True)
    batches = list(chunk.batches())
    seconds: list[list[float]] = [[] for _ in steppers]
    with runner.stepper.inference_mode():
        for _ in range(NUM_PASSES):
            for index, stepper in enumerate(steppers):
                start = time.perf_counter()
                for batch in batches:
                    stepper.full_model(batch)
                seconds[index].append(time.perf_counter() - start)
    return [min(passes) for passes in seconds]
