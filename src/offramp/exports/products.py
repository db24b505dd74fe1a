"""Matrix products with constant weights in an ONNX graph: their weights and the ranges of their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from offramp.core.machine import has_int8_dot_products

__all__ = [
    "ALPHA",
    "ONE_SIDED_ALPHA",
    "GraphRewriter",
    "Range",
    "largest_weight",
    "matmul_weights",
    "observe_ranges",
    "remove_aliases",
    "smoothing_factors",
]

Array = NDArray[Any]
ALPHA = 0.8  # SmoothQuant's migration strength
ONE_SIDED_ALPHA = 0.5  # of one-sided activations with all 256 values per token, which leave fewer errors to migrate
ONE_SIDED = 0.25  # an activation is one-sided if its minimum is smaller than this fraction of its maximum
LARGEST = 127
LARGEST_OF_7_BITS = 63  # 2 · 255 · 63 fits into 16 bits


def largest_weight() -> int:
    """Return the largest int8 weight that is safe on this CPU.

    Without 8-bit dot products, runtimes add pairs of products in 16 bits, which saturate; with 7-bit weights they do
    not.
    """
    return LARGEST if has_int8_dot_products() else LARGEST_OF_7_BITS


@dataclass
class Range:
    """Minimum, maximum and sum of an activation, per channel."""

    low: Array
    high: Array
    total: Array
    tokens: int

    @classmethod
    def from_values(cls, values: Array) -> Range:
        """Return the range of an array of tokens."""
        flat = values.reshape(-1, values.shape[-1])
        return cls(flat.min(0), flat.max(0), flat.sum(0, dtype=np.float64), len(flat))

    def add(self, other: Range) -> None:
        """Include more tokens."""
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.total, self.tokens = self.total + other.total, self.tokens + other.tokens

    @property
    def is_one_sided(self) -> bool:
        """Whether values are hardly below zero, as after GELU and ReLU: zero in the middle would waste a bit."""
        return bool(-self.low.min() < ONE_SIDED * self.high.max())

    @property
    def mean(self) -> Array:
        """The mean per channel."""
        mean: Array = (self.total / self.tokens).astype(np.float32)
        return mean


def remove_aliases(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove Identity nodes on constants, which layers with shared weights have (ALBERT)."""
    graph = model.graph
    names = {constant.name: constant.name for constant in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
            continue
        node.input[:] = [names.get(name, name) for name in node.input]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def matmul_weights(graph: Any) -> dict[str, list[tuple[Any, Array]]]:
    """Return the nodes and weights of the matrix products that read each activation."""
    constants = {constant.name: constant for constant in graph.initializer if len(constant.dims) == 2}
    products: dict[str, list[tuple[Any, Array]]] = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            products.setdefault(node.input[0], []).append((node, numpy_helper.to_array(constants[node.input[1]])))
    return products


def observe_ranges(model: onnx.ModelProto, feeds: Iterable[Mapping[str, Array]]) -> tuple[dict[str, Range], list[Any]]:
    """Run a graph on batches without padding; return the ranges of its products' inputs, and its outputs."""
    from offramp.runtimes.onnx import OnnxGraph

    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    output_names = {output.name for output in observed.graph.output}
    names = list(matmul_weights(observed.graph))
    added = [name for name in names if name not in output_names]
    observed.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in added)
    graph = OnnxGraph(observed.SerializeToString())
    ranges: dict[str, Range] = {}
    outputs = []
    for feed in feeds:
        output = graph({name: value for name, value in feed.items() if name in graph.inputs})
        for name in names:
            batch_range = Range.from_values(output.pop(name) if name in added else output[name])
            ranges[name].add(batch_range) if name in ranges else ranges.update({name: batch_range})
        outputs.append(output)
    return ranges, outputs


def smoothing_factors(range_: Range, weights: Iterable[Array], alpha: float = ALPHA) -> Array:
    """Return per channel the factor that moves from an activation to its weights (SmoothQuant, arXiv:2211.10438)."""
    activation = np.maximum(np.maximum(np.abs(range_.low), np.abs(range_.high)), 1e-5)
    largest = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), 1e-5)
    factor: Array = np.clip(activation**alpha / largest ** (1 - alpha), 1e-3, 1e3).astype(np.float32)
    return factor


@dataclass
class GraphRewriter:
    """Collects the new nodes and constants of a graph."""

    graph: Any
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Array) -> str:
        """Add a constant and return its name."""
        self.constants[name] = value
        return name

    def weight(self, name: str, weight: Array) -> tuple[str, str, Array]:
        """Add a weight in int8 with a scale per output channel; return their names and the rounded weight."""
        largest = largest_weight()
        scale = np.abs(weight).max(0).astype(np.float32) / largest
        scale[scale == 0] = 1
        rounded = np.clip(np.round(weight / scale), -largest, largest).astype(np.int8)
        return self.constant(f"{name}_bytes", rounded), self.constant(f"{name}_scales", scale), rounded * scale

    def bias_after(self, node: Any) -> tuple[Any, int, Array] | None:
        """Return the bias addition after a product, if it is the only reader: node, input index, and bias."""
        readers = [reader for reader in self.graph.node if node.output[0] in reader.input]
        if len(readers) != 1 or readers[0].op_type != "Add":
            return None
        index = 1 - list(readers[0].input).index(node.output[0])
        constants = {constant.name: constant for constant in self.graph.initializer if len(constant.dims) == 1}
        bias = constants.get(readers[0].input[index])
        return None if bias is None else (readers[0], index, numpy_helper.to_array(bias))

    def finish(self) -> None:
        """Replace the nodes of the graph, and keep only the constants that they read."""
        graph = self.graph
        del graph.node[:]
        graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in node.input}
        constants = [constant for constant in graph.initializer if constant.name in read]
        del graph.initializer[:]
        graph.initializer.extend(constants)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.constants.items())
        del graph.value_info[:]
