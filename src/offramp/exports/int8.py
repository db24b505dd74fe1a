"""Quantise matrix products with constant weights to int8, by rewriting an ONNX graph.

Weights get a scale per output channel; attention products, norms and heads stay in float32. The methods differ in the
scale of an activation: `static` is fixed at export, from texts; `token` is computed per token and needs no texts;
`mixed` is static, but per token inside the feed-forward blocks, whose activations after GELU differ most in size. With
all three, the prediction of a row does not depend on its batch. `dynamic` is ONNX Runtime's method with one scale per
batch: predictions depend on the other rows.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from offramp.core.machine import has_int8_dot_products
from offramp.exports.products import (
    ALPHA,
    LARGEST,
    ONE_SIDED_ALPHA,
    GraphRewriter,
    Range,
    matmul_weights,
    smoothing_factors,
)

__all__ = ["KINDS", "quantize"]

Array = NDArray[Any]
KINDS = ("static", "mixed", "token", "dynamic")
TINY = 1e-8  # minimum scale, for tokens of zeros
MICROSOFT = "com.microsoft"


def quantize(
    model: onnx.ModelProto, method: str, ranges: Mapping[str, Range] | None = None, smooth: bool = True
) -> onnx.ModelProto:
    """Return the graph with its matrix products in int8.

    Args:
        model: the graph in float32.
        method: static, mixed, token or dynamic.
        ranges: ranges of the inputs of the products; required for static and mixed, and for smoothing.
        smooth: move activation outliers into the weights.
    """
    if method == "dynamic":
        return _dynamic(model)
    quantised = onnx.ModelProto()
    quantised.CopyFrom(model)
    graph, rewriter, products = quantised.graph, GraphRewriter(quantised.graph), matmul_weights(quantised.graph)
    known, inputs = ranges or {}, dict[str, _Activation]()
    widest = max((len(weight) for readers in products.values() for _, weight in readers), default=0)
    for node in graph.node:
        name = node.input[0] if node.input else ""
        weight = next((weight for product, weight in products.get(name, ()) if product is node), None)
        if weight is None:
            rewriter.nodes.append(node)
            continue
        if name not in inputs:  # quantised once, even if several products read it
            weights = [weight for _, weight in products[name]]
            inputs[name] = activation = _Activation(name, None, known.get(name))
            in_feed_forward = activation.is_one_sided and len(weight) == widest
            activation.per_token = method == "token" or (method == "mixed" and in_feed_forward)
            if smooth and activation.range is not None:
                alpha = ONE_SIDED_ALPHA if activation.per_token and activation.is_one_sided else ALPHA
                activation.factors = smoothing_factors(activation.range, weights, alpha)
            (_quantise_per_token if activation.per_token else _quantise_static)(rewriter, activation)
        activation = inputs[name]
        (_multiply_per_token if activation.per_token else _multiply_static)(rewriter, node, activation, weight)
    rewriter.finish()
    any_per_token = any(activation.per_token for activation in inputs.values())
    if any_per_token and all(opset.domain != MICROSOFT for opset in quantised.opset_import):
        quantised.opset_import.extend([onnx.helper.make_opsetid(MICROSOFT, 1)])
    return quantised


@dataclass
class _Activation:
    """An activation that products read."""

    name: str
    factors: Array | None  # smoothing per channel: the activation is divided by them, its weights are multiplied
    range: Range | None
    per_token: bool = False  # a scale per token
    bytes: str = ""  # name of the quantised activation
    scale: str = ""  # name of the scales per token

    @property
    def is_one_sided(self) -> bool:
        """Whether its values are known to be hardly below zero."""
        return self.range is not None and self.range.is_one_sided

    @property
    def low(self) -> Array:
        """The smoothed minimum per channel, or zero."""
        assert self.range is not None
        low: Array = np.minimum(self.range.low, 0)
        return low if self.factors is None else low / self.factors

    def mean_error(self, weight: Array, rounded: Array) -> Array:
        """Return the mean error of a product because its weight was smoothed and rounded."""
        assert self.range is not None
        mean = self.range.mean
        smoothed_mean = mean if self.factors is None else mean / self.factors
        error: Array = (mean @ weight - smoothed_mean @ rounded).astype(np.float32)
        return error

    def smoothed(self, rewriter: GraphRewriter) -> str:
        """Add the smoothed activation and return its name."""
        if self.factors is None:
            return self.name
        inverse = rewriter.constant(f"{self.name}_smooth", 1 / self.factors)
        return rewriter.add("Mul", [self.name, inverse], f"{self.name}_even")

    def weight_name(self, node: Any) -> str:
        """Return the name for a product's weight: shared by layers, unless it is smoothed."""
        return str(node.input[1] if self.factors is None else node.output[0])

    def smoothed_weight(self, weight: Array) -> Array:
        """Return a weight multiplied by the smoothing factors."""
        return weight if self.factors is None else weight * self.factors[:, None]


def _quantise_per_token(rewriter: GraphRewriter, activation: _Activation) -> None:
    """Add an activation as unsigned bytes with a scale per token: around 128, or from 0 if it is one-sided."""
    name, value = activation.name, activation.smoothed(rewriter)
    if activation.is_one_sided:
        value = rewriter.add("Sub", [value, rewriter.constant(f"{name}_low", activation.low)], f"{name}_above")
        magnitude = value
    else:
        magnitude = rewriter.add("Abs", [value], f"{name}_abs")
    largest = rewriter.add("ReduceMax", [magnitude], f"{name}_top", axes=[-1], keepdims=1)
    largest = rewriter.add(
        "Max", [largest, rewriter.constant("int8_tiny", np.array(TINY, np.float32))], f"{name}_positive"
    )
    steps = 255 if activation.is_one_sided else LARGEST
    share = rewriter.constant(f"int8_share_{steps}", np.array(1 / steps, np.float32))
    activation.scale = rewriter.add("Mul", [largest, share], f"{name}_by")
    scaled = rewriter.add("Div", [value, activation.scale], f"{name}_scaled")
    activation.bytes = rewriter.add("QuantizeLinear", [scaled, *_one_and_zero(rewriter, activation)], f"{name}_bytes")


def _multiply_per_token(rewriter: GraphRewriter, node: Any, activation: _Activation, weight: Array) -> None:
    """Add the product of bytes, multiplied by the scales of the weight and of the tokens."""
    values, scales, rounded = rewriter.weight(activation.weight_name(node), activation.smoothed_weight(weight))
    one, zero = _one_and_zero(rewriter, activation)
    product = f"{node.output[0]}_unscaled"
    rewriter.add("MatMulIntegerToFloat", [activation.bytes, values, one, scales, zero], product, domain=MICROSOFT)
    inputs = [product, activation.scale]
    if activation.range is None:
        rewriter.add("Mul", inputs, node.output[0])
        return
    offset = activation.mean_error(weight, rounded)
    if activation.is_one_sided:
        offset += (activation.low @ rounded).astype(np.float32)
    _add_with_offset(rewriter, node, "Mul", inputs, offset)


def _quantise_static(rewriter: GraphRewriter, activation: _Activation) -> None:
    """Add an activation quantised and dequantised over its range, which runtimes fuse with the product."""
    assert activation.range is not None
    name, factors = activation.name, 1.0 if activation.factors is None else activation.factors
    low = min(0.0, float((activation.range.low / factors).min()))
    high = max(0.0, float((activation.range.high / factors).max()))
    scale = max(high - low, TINY) / 255
    numbers = [
        rewriter.constant(f"{name}_scale", np.array(scale, np.float32)),
        rewriter.constant(f"{name}_zero", np.array(np.clip(round(-low / scale), 0, 255), np.uint8)),
    ]
    bytes_ = rewriter.add("QuantizeLinear", [activation.smoothed(rewriter), *numbers], f"{name}_bytes")
    activation.bytes = rewriter.add("DequantizeLinear", [bytes_, *numbers], f"{name}_again")


def _multiply_static(rewriter: GraphRewriter, node: Any, activation: _Activation, weight: Array) -> None:
    """Add the product, corrected by the mean error of the rounded weights."""
    assert activation.range is not None
    values, scales, rounded = rewriter.weight(activation.weight_name(node), activation.smoothed_weight(weight))
    zeros = rewriter.constant(f"{values}_zeros", np.zeros(weight.shape[1], np.int8))
    dequantised = rewriter.add("DequantizeLinear", [values, scales, zeros], f"{node.output[0]}_weight", axis=1)
    offset = activation.mean_error(weight, rounded)
    _add_with_offset(rewriter, node, "MatMul", [activation.bytes, dequantised], offset)


def _add_with_offset(rewriter: GraphRewriter, node: Any, op_type: str, inputs: list[str], offset: Array) -> None:
    """Add the operation that computes the output of a product, and an offset, which becomes part of a bias."""
    if (bias := rewriter.bias_after(node)) is not None:
        add, index, value = bias
        add.input[index] = rewriter.constant(f"{node.output[0]}_bias", value + offset)
        rewriter.add(op_type, inputs, node.output[0])
        return
    product = rewriter.add(op_type, inputs, f"{node.output[0]}_off")
    rewriter.add("Add", [product, rewriter.constant(f"{node.output[0]}_error", offset)], node.output[0])


def _one_and_zero(rewriter: GraphRewriter, activation: _Activation) -> list[str]:
    """Return a scale of one and the byte that stands for zero."""
    zero = 0 if activation.is_one_sided else 128
    one = rewriter.constant("int8_one", np.array(1, np.float32))
    return [one, rewriter.constant(f"int8_{zero}", np.array(zero, np.uint8))]


def _dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        level, silent = root.level, logging.NullHandler()
        # onnxruntime recommends a step that does not help here, through a handler that it would not remove
        root.addHandler(silent)
        root.setLevel(logging.ERROR)
        try:
            quantize_dynamic(
                before,
                after,
                per_channel=True,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
                reduce_range=not has_int8_dot_products(),
            )
        finally:
            root.setLevel(level)
            root.removeHandler(silent)
        return onnx.load(after)
