"""Products with constant weights in int8, by rewriting an ONNX graph.

Weights get a scale per output channel; attention's own products, norms and heads stay in float32. What an activation's
scale belongs to is the difference: `static`, one number fixed at export from texts; `token`, each token its own, which
needs no texts. In both a row cannot depend on its batch. `dynamic` is ONNX Runtime's own, one number per batch: a row's
answer then depends on its neighbours.
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

from offramp.core.machine import has_int8_products
from offramp.exports.products import LARGEST, Range, Rewriting, smoothing, weights_of

__all__ = ["KINDS", "quantise"]

Array = NDArray[Any]
KINDS = ("static", "token", "dynamic")
TINY = 1e-8  # a token of zeros has a scale, too
MICROSOFT = "com.microsoft"


def quantise(
    model: onnx.ModelProto, kind: str, ranges: Mapping[str, Range] | None = None, smooth: bool = True
) -> onnx.ModelProto:
    """The graph with its products in int8; smoothed where `ranges` tell what goes into them."""
    if kind == "dynamic":
        return _dynamic(model)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, rewriting, products = made.graph, Rewriting(made.graph), weights_of(made.graph)
    known = ranges or {}
    inputs: dict[str, _Input] = {}
    for node in graph.node:
        read = node.input[0] if node.input else ""
        weight = next((weight for one, weight in products.get(read, ()) if one is node), None)
        if weight is None:
            rewriting.nodes.append(node)
            continue
        if read not in inputs:  # once, however many products read it
            even = smoothing(known[read], [one for _, one in products[read]]) if smooth and read in known else None
            inputs[read] = _Input(read, even, known.get(read))
            (_per_token if kind == "token" else _fixed)(rewriting, inputs[read])
        (_times_token if kind == "token" else _times_fixed)(rewriting, node, inputs[read], weight)
    rewriting.finish()
    if kind == "token" and all(one.domain != MICROSOFT for one in made.opset_import):
        made.opset_import.extend([onnx.helper.make_opsetid(MICROSOFT, 1)])
    return made


@dataclass
class _Input:
    """An activation that products read."""

    name: str
    even: Array | None  # by channel, what it is divided by before it is rounded, and its weights are multiplied with
    range: Range | None
    bytes: str = ""  # what products read instead
    scale: str = ""  # of its tokens

    def divided(self, made: Rewriting) -> str:
        """The activation without its outliers."""
        if self.even is None:
            return self.name
        return made.add("Mul", [self.name, made.constant(f"{self.name}_smooth", 1 / self.even)], f"{self.name}_even")

    def named(self, node: Any) -> str:
        """What a product's weight is called: layers may share one, but not once it has taken outliers over."""
        return str(node.input[1] if self.even is None else node.output[0])

    def weight(self, weight: Array) -> Array:
        """A weight that takes them over."""
        return weight if self.even is None else weight * self.even[:, None]


def _per_token(made: Rewriting, read: _Input) -> None:
    """Unsigned bytes around 128, a token's greatest value at 127."""
    name, value = read.name, read.divided(made)
    greatest = made.add("ReduceMax", [made.add("Abs", [value], f"{name}_abs")], f"{name}_top", axes=[-1], keepdims=1)
    greatest = made.add("Max", [greatest, made.constant("int8_tiny", np.array(TINY, np.float32))], f"{name}_positive")
    read.scale = made.add(
        "Mul", [greatest, made.constant("int8_share", np.array(1 / LARGEST, np.float32))], f"{name}_by"
    )
    scaled = made.add("Div", [value, read.scale], f"{name}_scaled")
    read.bytes = made.add("QuantizeLinear", [scaled, *_one_and_128(made)], f"{name}_bytes")


def _times_token(made: Rewriting, node: Any, read: _Input, weight: Array) -> None:
    """The product of bytes, times the weight's scales and the token's."""
    values, scales, _ = made.weight(read.named(node), read.weight(weight))
    one, zero = _one_and_128(made)
    product = f"{node.output[0]}_unscaled"
    made.add("MatMulIntegerToFloat", [read.bytes, values, one, scales, zero], product, domain=MICROSOFT)
    made.add("Mul", [product, read.scale], node.output[0])


def _fixed(made: Rewriting, read: _Input) -> None:
    """Unsigned bytes over the range that was seen; quantised and dequantised, which runtimes fuse with the product."""
    assert read.range is not None
    name, even = read.name, 1.0 if read.even is None else read.even
    low, high = min(0.0, float((read.range.low / even).min())), max(0.0, float((read.range.high / even).max()))
    scale = max(high - low, TINY) / 255
    numbers = [
        made.constant(f"{name}_scale", np.array(scale, np.float32)),
        made.constant(f"{name}_zero", np.array(np.clip(round(-low / scale), 0, 255), np.uint8)),
    ]
    bytes_ = made.add("QuantizeLinear", [read.divided(made), *numbers], f"{name}_bytes")
    read.bytes = made.add("DequantizeLinear", [bytes_, *numbers], f"{name}_again")


def _times_fixed(made: Rewriting, node: Any, read: _Input, weight: Array) -> None:
    """The product, corrected by what rounding the weights did to the mean."""
    assert read.range is not None
    values, scales, rounded = made.weight(read.named(node), read.weight(weight))
    zeros = made.constant(f"{values}_zeros", np.zeros(weight.shape[1], np.int8))
    again = made.add("DequantizeLinear", [values, scales, zeros], f"{node.output[0]}_weight", axis=1)
    mean = read.range.mean
    error = (mean @ weight - (mean if read.even is None else mean / read.even) @ rounded).astype(np.float32)
    if (bias := made.bias_behind(node)) is not None:
        add, place, value = bias
        add.input[place] = made.constant(f"{node.output[0]}_bias", value + error)
        made.add("MatMul", [read.bytes, again], node.output[0])
        return
    product = made.add("MatMul", [read.bytes, again], f"{node.output[0]}_off")
    made.add("Add", [product, made.constant(f"{node.output[0]}_error", error)], node.output[0])


def _one_and_128(made: Rewriting) -> list[str]:
    one = made.constant("int8_one", np.array(1, np.float32))
    return [one, made.constant("int8_128", np.array(128, np.uint8))]


def _dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    with tempfile.TemporaryDirectory() as place:
        before, after = Path(place) / "before.onnx", Path(place) / "after.onnx"
        onnx.save(model, before)
        level, silent = root.level, logging.NullHandler()
        root.addHandler(
            silent
        )  # it advises a step that does not pay here, through a handler that it would leave behind
        root.setLevel(logging.ERROR)
        try:
            quantize_dynamic(
                before,
                after,
                per_channel=True,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
                reduce_range=not has_int8_products(),
            )
        finally:
            root.setLevel(level)
            root.removeHandler(silent)
        return onnx.load(after)
