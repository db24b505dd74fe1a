"""The products with constant weights in an ONNX graph: what int8 is about, and what goes into them on real texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from offramp.core.machine import has_int8_products

__all__ = ["Range", "Rewriting", "largest_weight", "observe", "smoothing", "weights_of", "without_aliases"]

Array = NDArray[Any]
ALPHA = 0.8  # how much of an activation's outliers moves into the weights
LARGEST = 127
LARGEST_OF_7_BITS = 63  # 2 · 255 · 63 fits into 16 bits


def largest_weight() -> int:
    """Of a weight in int8 on this CPU.

    Without instructions for 8-bit products, the runtimes sum pairs of them in 16 bits, which saturate; weights of seven
    bits never do.
    """
    return LARGEST if has_int8_products() else LARGEST_OF_7_BITS


@dataclass
class Range:
    """Of an activation, by channel: the least and greatest value that was seen, and the mean."""

    low: Array
    high: Array
    total: Array
    tokens: int

    @classmethod
    def of(cls, values: Array) -> Range:
        """Of some tokens."""
        flat = values.reshape(-1, values.shape[-1])
        return cls(flat.min(0), flat.max(0), flat.sum(0, dtype=np.float64), len(flat))

    def add(self, other: Range) -> None:
        """More tokens."""
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.total, self.tokens = self.total + other.total, self.tokens + other.tokens

    @property
    def mean(self) -> Array:
        """By channel."""
        mean: Array = (self.total / self.tokens).astype(np.float32)
        return mean


def without_aliases(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph whose constants have one name each: layers that share weights know them by others (ALBERT)."""
    graph = model.graph
    names = {one.name: one.name for one in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
            continue
        node.input[:] = [names.get(name, name) for name in node.input]
        kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    return model


def weights_of(graph: Any) -> dict[str, list[tuple[Any, Array]]]:
    """By activation, the products that read it: their nodes and weights."""
    constants = {one.name: one for one in graph.initializer if len(one.dims) == 2}
    found: dict[str, list[tuple[Any, Array]]] = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            found.setdefault(node.input[0], []).append((node, numpy_helper.to_array(constants[node.input[1]])))
    return found


def observe(model: onnx.ModelProto, feeds: Iterable[Mapping[str, Array]]) -> tuple[dict[str, Range], list[Any]]:
    """What goes into the products on some batches without padding, and what the graph answers to each."""
    from offramp.runtimes.onnx import OnnxGraph

    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    names = [name for name in weights_of(seen.graph) if name not in {one.name for one in seen.graph.output}]
    seen.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    graph = OnnxGraph(seen.SerializeToString())
    ranges: dict[str, Range] = {}
    answers = []
    for feed in feeds:
        answer = graph({name: value for name, value in feed.items() if name in graph.inputs})
        for name in names:
            one = Range.of(answer.pop(name))
            ranges[name].add(one) if name in ranges else ranges.update({name: one})
        answers.append(answer)
    return ranges, answers


def smoothing(range_: Range, weights: Iterable[Array]) -> Array:
    """By channel, what an activation is divided by and its weights are multiplied with (SmoothQuant, 2211.10438)."""
    activation = np.maximum(np.maximum(np.abs(range_.low), np.abs(range_.high)), 1e-5)
    weight = np.maximum(np.max([np.abs(one).max(1) for one in weights], axis=0), 1e-5)
    factor: Array = np.clip(activation**ALPHA / weight ** (1 - ALPHA), 1e-3, 1e3).astype(np.float32)
    return factor


@dataclass
class Rewriting:
    """A graph's new nodes and constants."""

    graph: Any
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def add(self, kind: str, inputs: list[str], output: str, **options: Any) -> str:
        """A node with one output, which is its name."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def constant(self, name: str, value: Array) -> str:
        """A constant by its name."""
        self.constants[name] = value
        return name

    def weight(self, name: str, weight: Array) -> tuple[str, str, Array]:
        """A weight in int8, a scale per output channel; their names, and what the bytes stand for."""
        largest = largest_weight()
        scale = np.abs(weight).max(0).astype(np.float32) / largest
        scale[scale == 0] = 1
        whole = np.clip(np.round(weight / scale), -largest, largest).astype(np.int8)
        return self.constant(f"{name}_bytes", whole), self.constant(f"{name}_scales", scale), whole * scale

    def bias_behind(self, node: Any) -> tuple[Any, int, Array] | None:
        """The addition of a constant that alone reads a product: its node, the constant's place, the constant."""
        readers = [one for one in self.graph.node if node.output[0] in one.input]
        if len(readers) != 1 or readers[0].op_type != "Add":
            return None
        place = 1 - list(readers[0].input).index(node.output[0])
        constants = {one.name: one for one in self.graph.initializer if len(one.dims) == 1}
        found = constants.get(readers[0].input[place])
        return None if found is None else (readers[0], place, numpy_helper.to_array(found))

    def finish(self) -> None:
        """Put the new nodes in, and only those constants that they read."""
        graph = self.graph
        del graph.node[:]
        graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in node.input}
        kept = [one for one in graph.initializer if one.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.constants.items())
        del graph.value_info[:]
