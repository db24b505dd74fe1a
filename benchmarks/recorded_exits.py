"""Select and test exits on recorded encoder states, for benchmarks that compare ways to train them.

The encoder runs once, in ONNX Runtime int8 if that preserves its predictions. Heads are trained on its states; exits
and thresholds are selected and the guarantee is tested as `offramp adapt` does, but by counted operations instead of
measured times. The reference is the full depth of the same encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.adaptation.encoder_export import int8_runner
from offramp.calibration.choice import choose_with_guarantee, policies_for
from offramp.calibration.risks import Guarantee
from offramp.calibration.tuning.choosing import TuneOptions, candidates, settings_to_test
from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.threshold_grids import with_exits
from offramp.evaluation.traces.about import describe
from offramp.evaluation.traces.operations import Operations, count_operations
from offramp.evaluation.traces.trace import Trace
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.model.exits import Head
from offramp.training.imitation.heads import ImitationOptions, default_epochs, imitate
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import States, record_states

__all__ = ["load", "record_all", "select", "train_and_trace"]

EFFORT = 0.5  # of the default epochs
ROWS = 256  # rows per batch when heads are applied


def load(classifier: Path, channels: int, max_length: int | None = None, seed: int = 42) -> AdaptiveModel:
    """Return the classifier with new exits on the embeddings and its layers."""
    torch.manual_seed(seed)
    model = load_with_new_exits(str(classifier), ExitOptions("auto", "attention", convolution=channels))
    model.config.max_tokens = max_length or model.config.max_tokens
    return model


def record_all(model: AdaptiveModel, parts: dict[str, list[Any]], folder: Path) -> tuple[dict[str, States], str]:
    """Run the encoder on every part of the texts, among them `training` and `selection`; return its precision too.

    As in `adapt`, the encoder runs in float32 if int8 changes too many predictions.
    """
    runner = int8_runner(model, "onnx", "static", parts["training"], parts["selection"])
    states = {}
    for name, texts in parts.items():
        (folder / name).mkdir()
        states[name] = record_states(model, texts, folder / name, quiet=True, exported=runner)
    return states, "float32" if runner is None else "int8"


def train_and_trace(
    model: AdaptiveModel, training: States, parts: dict[str, States]
) -> tuple[dict[str, Trace], Operations]:
    """Train the exits half as long as `adapt`; return their outputs on other parts, and their operations."""
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    options = ImitationOptions(EFFORT * default_epochs(len(training.lengths), training.mean_length))
    imitate(heads, training, model.config.answer_type, options)
    operations = count_operations(model.config)
    return {name: _to_trace(model, heads, states, operations) for name, states in parts.items()}, operations


@torch.no_grad()
def _to_trace(model: AdaptiveModel, heads: Sequence[Head], states: States, operations: Operations) -> Trace:
    """Return the outputs of the heads on recorded states, and of the full model, as a trace."""
    rows = len(states.lengths)
    logits = np.empty((rows, len(heads) + 1, states.teacher.shape[1]), np.float32)
    logits[:, -1] = states.teacher.numpy()
    for start in range(0, rows, ROWS):
        batch = np.arange(start, min(rows, start + ROWS))
        for index, (head, state) in enumerate(zip(heads, states.encoder_states(batch), strict=True)):
            logits[batch, index] = head(head.features(state)).float().numpy()
    spent, head_operations = operations.at(states.lengths)
    about = describe(model.runner())
    return Trace(about, logits, spent, head_operations, states.lengths, np.zeros(rows, np.uint64))


def _counted_costs(operations: Operations, lengths: Any) -> Costs:
    """Return operations as the costs of a batch, for the search of exits."""
    layers = operations.spent - np.cumsum(operations.head, axis=0)
    layers = np.diff(layers, axis=0, prepend=0)
    per_call = np.zeros((len(layers), 1))
    zero = np.zeros(4)
    head = np.concatenate([[0.0], operations.head.mean(0)])
    return Costs(np.hstack([per_call, layers]), head, zero, 32, int(np.median(lengths)))


def select(traces: dict[str, Trace], operations: Operations, guarantee: Guarantee, with_zero: bool) -> dict[str, Any]:
    """Select exits, test the guarantee, and return the result on the other parts."""
    layers = [point.layer for point in traces["selection"].points]
    allowed = [index for index, layer in enumerate(layers[:-1]) if layer or with_zero]
    costs = _counted_costs(operations, traces["selection"].lengths)
    tuning = TuneOptions("torch", policies_for("auto", traces["selection"].model_spec)[0])
    ranked = candidates(traces["selection"], guarantee, costs, tuning, allowed)
    if not ranked:
        return {"layers": None}
    kept, policy = ranked[0].exit_indices, ranked[0].policy
    tested, settings = settings_to_test(with_exits(traces["test"], kept), policy)
    choice = choose_with_guarantee(tested, guarantee, settings, "")
    if choice.policy is None:
        return {"layers": None}
    return {
        "layers": [layers[index] for index in kept],
        "policy": str(choice.policy),
        **{
            name: _on_rows(with_exits(trace, kept), choice.policy, guarantee)
            for name, trace in traces.items()
            if name not in ("selection", "test")
        },
    }


def _on_rows(trace: Trace, policy: Any, guarantee: Guarantee) -> dict[str, float]:
    """Return changed predictions, and how many times fewer layers and operations run."""
    replayed = trace.replay(policy)
    changed = trace.answer_type.differ(replayed.answers, trace.full, guarantee.tolerance)
    heads_on_the_way = trace.spent_at(replayed.exit)
    full = trace.spent_at(np.full(trace.rows, len(trace.points)), alone=True)
    return {
        "rows": trace.rows,
        "differ": float(changed.mean()),
        "fewer_layers": trace.depth / max(1e-9, float(replayed.layer.mean())),
        "fewer_operations": float(full.sum() / heads_on_the_way.sum()),
    }
