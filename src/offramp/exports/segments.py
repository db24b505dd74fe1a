"""A model as one ONNX graph with all exits, and the parts of it between two exits.

The graph is exported once; the segments of any set of exits are cut out of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from offramp.core.stepper import ExitPoint
from offramp.encoders import EncoderState
from offramp.exports.products import remove_aliases
from offramp.model.adaptive import AdaptiveModel

__all__ = ["OPSET", "cut_segments", "export_whole", "hidden_name"]

OPSET = 17
ROWS, TOKENS = 2, 7  # shape of the tracing example; both dimensions are dynamic in the graph


def hidden_name(layer: int) -> str:
    """Return the name of the hidden states after a layer in the whole graph."""
    return f"hidden_{layer}"


class _WholeModel(nn.Module):
    """Computes the hidden states and the logits of every exit from tokens; the mask is true for real tokens."""

    def __init__(self, model: AdaptiveModel, points: Sequence[ExitPoint]):
        super().__init__()
        self.model, self.points = model, points
        self.eval()  # torch.onnx.export restores the mode of the outer module in all submodules

    @property
    def inputs(self) -> list[str]:
        has_types = bool(getattr(self.model.config.backbone, "type_vocab_size", 0))
        return ["input_ids", "mask", *(["token_type_ids"] if has_types else [])]

    @property
    def outputs(self) -> list[str]:
        return [name for point in self.points for name in (hidden_name(point.layer), *self.answers(point))]

    def answers(self, point: ExitPoint) -> list[str]:
        return [f"{name}_{point.layer}" for name in ("logits", *(["uncertainty"] if self.model.config.lte else []))]

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
        family, encoder = self.model.config.family, self.model.backbone
        hidden = family.embed(encoder, ids, mask, types)
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
        # what layers take besides hidden states depends on the mask only, so that segments can be cut at hidden states
        shape = mask.unsqueeze(-1).to(hidden.dtype)
        attention, extra = family.attention(encoder, shape, mask), family.extra(encoder, shape, mask)
        state = EncoderState(hidden, attention, weights, None, 0, extra)
        outputs: list[Tensor] = []
        for point in self.points:
            state = family.step(encoder, state, point.layer)
            logits, uncertainty = self.model.stepper.run_head(state, point)
            outputs += [state.hidden, logits, *([] if uncertainty is None else [uncertainty])]
        return tuple(outputs)

    def example(self) -> tuple[Tensor, ...]:
        ids = torch.ones(ROWS, TOKENS, dtype=torch.long)
        types = [torch.zeros_like(ids)] if len(self.inputs) == 3 else []
        return (ids, torch.ones(ROWS, TOKENS, dtype=torch.bool), *types)


def export_whole(model: AdaptiveModel, points: Sequence[ExitPoint]) -> Any:
    """Return the model with these exits as one float32 graph for any number of rows and tokens."""
    import onnx

    whole = _WholeModel(model, points)
    per_token = model.config.answer_type.per_token
    dynamic: dict[str, Any] = {name: {0: "rows", 1: "tokens"} for name in whole.inputs}
    for point in points:
        answers = {name: {0: "rows", 1: "tokens"} if per_token else {0: "rows"} for name in whole.answers(point)}
        dynamic |= {hidden_name(point.layer): {0: "rows", 1: "tokens"}, **answers}
    with TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the deprecated exporter and Python numbers as constants
        file = Path(folder) / "whole.onnx"
        torch.onnx.export(
            whole,
            whole.example(),
            str(file),
            input_names=whole.inputs,
            output_names=whole.outputs,
            dynamic_axes=dynamic,
            opset_version=OPSET,
            dynamo=False,  # its graphs run 10 % faster than those of the new exporter
        )
        return remove_aliases(onnx.load(file))


def cut_segments(whole: Any, layers: Sequence[int], last: int) -> list[Any]:
    """Return one graph per exit of the whole graph, each from the previous exit on; that of layer `last` has no `next`.

    Inputs are those of the model in the first graph, else `hidden` and `mask`; outputs are `next`, `logits`, and
    `uncertainty` if the model has it.
    """
    return [_cut(whole, start, layer, layer != last) for start, layer in pairwise([None, *layers])]


def _cut(whole: Any, start: int | None, layer: int | None, has_next: bool) -> Any:
    """Return the nodes between the hidden states after `start` (None: tokens) and the exit on `layer`."""
    import onnx

    available = {output.name: output for output in whole.graph.output}
    answers = {f"{name}_{layer}": name for name in ("logits", "uncertainty") if f"{name}_{layer}" in available}
    outputs = {**({f"hidden_{layer}": "next"} if has_next else {}), **answers}
    inputs = {} if start is None else {hidden_name(start): "hidden"}
    given = {entry.name: entry for entry in whole.graph.input} | {name: available[name] for name in inputs}
    nodes = _needed_nodes(whole.graph.node, outputs, given)
    read = {name for node in nodes for name in _reads(node)}
    segment = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import)
    segment.graph.name = "segment"
    segment.graph.node.extend(nodes)
    segment.graph.initializer.extend(constant for constant in whole.graph.initializer if constant.name in read)
    names = {**inputs, **outputs}
    _rename(segment.graph, names)
    for values, entries in (
        (segment.graph.input, [entry for name, entry in given.items() if name in read]),
        (segment.graph.output, [available[name] for name in outputs]),
    ):
        values.extend(entries)
        for value in values:
            value.name = names.get(value.name, value.name)
    return segment


def _needed_nodes(nodes: Sequence[Any], outputs: Iterable[str], given: Collection[str]) -> list[Any]:
    """Return the nodes that compute `outputs` from `given` values, in their order."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if any(name in needed and name not in given for name in node.output):
            kept.append(node)
            needed.update(_reads(node))
    return kept[::-1]


def _reads(node: Any) -> list[str]:
    """Return the values that a node reads, also in nested graphs (as DeBERTa's have)."""
    nested = [graph for attribute in node.attribute for graph in (*attribute.graphs, attribute.g)]
    return [*node.input, *(name for graph in nested for inner in graph.node for name in _reads(inner))]


def _rename(graph: Any, names: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for nested in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename(nested, names)
                for output in nested.output:
                    output.name = names.get(output.name, output.name)
