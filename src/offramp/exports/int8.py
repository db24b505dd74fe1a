"""Quantise matrix products with constant weights to int8, by rewriting an ONNX graph.

Weights get a scale per output channel; attention products, norms and heads stay in float32. The methods differ in the
scale of an activation: `static` is fixed at export, from texts; `token` is computed per token and needs no texts; with
both, the prediction of a row does not depend on its batch. `dynamic` is ONNX Runtime's method with one scale per batch:
predictions depend on the other rows.
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
from offramp.exports.products import LARGEST, GraphRewriter, Range, matmul_weights, smoothing_factors

__all__ = ["KINDS", "quantize"]

Array = NDArray[Any]
KINDS = ("static", "token", "dynamic")
TINY = 1e-8  # minimum scale, for tokens of zeros
MICROSOFT = "com.microsoft"


def quantize(
    model: onnx.ModelProto, method: str, ranges: Mapping[str, Range] | None = None, smooth: bool = True
) -> onnx.ModelProto:
    """Return the graph with its matrix products in int8.

    Args:
        model: the graph in float32.
        method: static, token or dynamic.
        ranges: ranges of the inputs of the products; required for static, and for smoothing.
        smooth: move activation outliers into the weights.
    """
    if method == "dynamic":
        return _dynamic(model)
    quantised = onnx.ModelProto()
    quantised.CopyFrom(model)
    graph, rewriter, products = quantised.graph, GraphRewriter(quantised.graph), matmul_weights(quantised.graph)
    known = ranges or {}
    inputs: dict[str, _Activation] = {}
    for node in graph.node:
        name = node.input[0] if node.input else ""
        weight = next((weight for product, weight in products.get(name, ()) if product is node), None)
        if weight is None:
            rewriter.nodes.append(node)
            continue
        if name not in inputs:  # quantised once, even if several products read it
            weights = [weight for _, weight in products[name]]
            factors = smoothing_factors(known[name], weights) if smooth and name in known else None
            inputs[name] = _Activation(name, factors, known.get(name))
            (_quantise_per_token if method == "token" else _quantise_static)(rewriter, inputs[name])
        (_multiply_per_token if method == "token" else _multiply_static)(rewriter, node, inputs[name], weight)
    rewriter.finish()
    if method == "token" and all(opset.domain != MICROSOFT for opset in quantised.opset_import):
        quantised.opset_import.extend([onnx.helper.make_opsetid(MICROSOFT, 1)])
    return quantised


@dataclass
class _Activation:
    """An activation that products read."""

    name: str
    factors: Array | None  # smoothing per channel: the activation is divided by them, its weights are multiplied
    range: Range | None
    bytes: str = ""  # name of the quantised activation
    scale: str = ""  # name of the scales per token

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
    """Add an activation as unsigned bytes around 128, with a scale per token."""
    name, value = activation.name, activation.smoothed(rewriter)
    largest = rewriter.add(
        "ReduceMax", [rewriter.add("Abs", [value], f"{name}_abs")], f"{name}_top", axes=[-1], keepdims=1
    )
    largest = rewriter.add(
        "Max", [largest, rewriter.constant("int8_tiny", np.array(TINY, np.float32))], f"{name}_positive"
    )
    activation.scale = rewriter.add(
        "Mul", [largest, rewriter.constant("int8_share", np.array(1 / LARGEST, np.float32))], f"{name}_by"
    )
    scaled = rewriter.add("Div", [value, activation.scale], f"{name}_scaled")
    activation.bytes = rewriter.add("QuantizeLinear", [scaled, *_one_and_128(rewriter)], f"{name}_bytes")


def _multiply_per_token(rewriter: GraphRewriter, node: Any, activation: _Activation, weight: Array) -> None:
    """Add the product of bytes, multiplied by the scales of the weight and of the tokens."""
    values, scales, _ = rewriter.weight(activation.weight_name(node), activation.smoothed_weight(weight))
    one, zero = _one_and_128(rewriter)
    product = f"{node.output[0]}_unscaled"
    rewriter.add("MatMulIntegerToFloat", [activation.bytes, values, one, scales, zero], product, domain=MICROSOFT)
    rewriter.add("Mul", [product, activation.scale], node.output[0])


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
    mean = activation.range.mean
    smoothed_mean = mean if activation.factors is None else mean / activation.factors
    error = (mean @ weight - smoothed_mean @ rounded).astype(np.float32)
    if (bias := rewriter.bias_after(node)) is not None:
        add, index, value = bias
        add.input[index] = rewriter.constant(f"{node.output[0]}_bias", value + error)
        rewriter.add("MatMul", [activation.bytes, dequantised], node.output[0])
        return
    product = rewriter.add("MatMul", [activation.bytes, dequantised], f"{node.output[0]}_off")
    rewriter.add("Add", [product, rewriter.constant(f"{node.output[0]}_error", error)], node.output[0])


def _one_and_128(rewriter: GraphRewriter) -> list[str]:
    one = rewriter.constant("int8_one", np.array(1, np.float32))
    return [one, rewriter.constant("int8_128", np.array(128, np.uint8))]


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
