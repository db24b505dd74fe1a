"""One ONNX graph that leaves early by itself: any ONNX Runtime (C++, Java, JavaScript, Triton) runs it without us.

Inputs: `input_ids`, `attention_mask` (and `token_type_ids` where the family has them), int64; `threshold`, a float, and
`max_layers`, an int64, both without dimensions. Outputs: `logits` of each row at the exit where it left, and
`exit_layer`. The file's metadata name the policy, its calibrated threshold and the exits. A batch has at least one row.

    segment 1 ─ head ─ who stays? ─ If(somebody) ─┬─ then: gather, cut to the longest, segment 2 ─ … ─ scatter back
                                                  └─ else: what there is

Weights lie inside the bodies of the Ifs: as constants of the outer graph they cost a third more at one row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from offramp.answers import AnswerType
from offramp.errors import BadValue
from offramp.files.writing import writing
from offramp.policies import Entropy, Never, Policy
from offramp.runtimes.segments import SegmentStepper

__all__ = ["check_policy", "compose", "write_one_file"]

logger = logging.getLogger("offramp")


def write_one_file(folder: Path, policy: str | None) -> tuple[Path, Policy]:
    """`onnx/model.onnx`, made of the segments that were exported there."""
    from offramp.exports.folder import load_export

    runner = load_export(str(folder), "onnx", None, None, {})
    chosen = runner.config.choose(policy)
    if policy is None and isinstance(chosen, Never):
        chosen = Entropy(0.0)
        logger.warning("The export has no policy yet: with threshold 0 nobody leaves. Calibrate it, or name one.")
    stepper = runner.stepper
    assert isinstance(stepper, SegmentStepper)
    layers = [point.layer for point in stepper.exits]
    made = compose([onnx.load(file) for file in stepper.sources], layers, chosen, runner.config.answer_type)
    target = folder / "onnx" / "model.onnx"
    part = target.with_suffix(".part")
    with writing(target):
        try:
            onnx.save(made, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target, chosen


def check_policy(chosen: Policy, answer_type: AnswerType) -> None:
    """Refuse what a graph cannot decide by itself."""
    if type(chosen).in_graph is Policy.in_graph or isinstance(getattr(chosen, "threshold", None), tuple):
        raise BadValue(f"A single file exits by entropy:T, confidence:T or risk:T with one number, not by {chosen}.")
    if not answer_type.is_one_class:
        raise BadValue("`one_file=` supports single-label classification only.")


class Body:
    """A graph that grows; names get a prefix, so that bodies do not hide each other's."""

    def __init__(self, prefix: str):
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """A node with one output, which is its name."""
        name = f"{self.prefix}{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **options))
        return name

    def constant(self, value: NDArray[Any]) -> str:
        """A constant."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def numbers(self, *values: int) -> str:
        """Whole numbers."""
        return self.constant(np.array(values, np.int64))

    def inline(self, graph: Any, given: dict[str, str]) -> dict[str, str]:
        """A whole graph's nodes; `given` says what its inputs are called here; returns its outputs' names."""
        names = dict(given)
        for one in graph.initializer:
            names[one.name] = f"{self.prefix}{one.name}"
            copied = onnx.TensorProto()
            copied.CopyFrom(one)
            copied.name = names[one.name]
            self.constants.append(copied)
        for node in graph.node:
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            names |= {name: f"{self.prefix}{name}" for name in node.output if name}
            copied.input[:] = [names[name] if name else "" for name in node.input]
            copied.output[:] = [names[name] if name else "" for name in node.output]
            copied.name = f"{self.prefix}{node.name}" if node.name else ""
            self.nodes.append(copied)
        return {one.name: names[one.name] for one in graph.output}


def compose(
    segments: Sequence[onnx.ModelProto], layers: Sequence[int], chosen: Policy, answer_type: AnswerType
) -> onnx.ModelProto:
    """The segments as one graph with the exits inside."""
    check_policy(chosen, answer_type)
    first, main = segments[0].graph, Body("0_")
    ids = [one.name for one in first.input if one.name != "mask"]
    mask = main.add("Cast", "attention_mask", to=TensorProto.BOOL)
    logits, layer = _exit(main, segments, layers, chosen, 0, {**{name: name for name in ids}, "mask": mask})
    main.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    main.nodes.append(helper.make_node("Identity", [layer], ["exit_layer"]))
    classes = next(one for one in first.output if one.name == "logits").type.tensor_type.shape.dim[-1].dim_value
    number = [helper.make_tensor_value_info("threshold", TensorProto.FLOAT, [])]
    number += [helper.make_tensor_value_info("max_layers", TensorProto.INT64, [])]
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"]) for name in ids]
    tokens.insert(1, helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["rows", "tokens"]))
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", classes]),
        helper.make_tensor_value_info("exit_layer", TensorProto.INT64, ["rows"]),
    ]
    graph = helper.make_graph(main.nodes, "offramp", [*tokens, *number], outputs, main.constants)
    made = helper.make_model(graph, opset_imports=segments[0].opset_import, ir_version=segments[0].ir_version)
    told = {"policy": chosen.name, "threshold": f"{chosen.parameter:g}", "exits": ",".join(map(str, layers))}
    for key, value in told.items():
        made.metadata_props.add(key=key, value=value)
    return made


def _exit(
    body: Body,
    segments: Sequence[onnx.ModelProto],
    layers: Sequence[int],
    policy: Policy,
    place: int,
    given: dict[str, str],
) -> tuple[str, str]:
    """A segment, and behind it an If with the next one for the rows that stay; the names of logits and layers."""
    said = body.inline(segments[place].graph, given)
    rows = body.add("Shape", said["logits"], start=0, end=1)
    layer = body.add("Expand", body.numbers(layers[place]), rows)
    if place == len(segments) - 1:
        return said["logits"], layer
    stay = body.add("Not", policy.in_graph(body, said["logits"], place + 1))
    deeper = body.add("LessOrEqual", body.constant(np.array(layers[place + 1], np.int64)), "max_layers")
    stay = body.add("And", stay, deeper)
    kept = body.add("Squeeze", body.add("NonZero", stay), body.numbers(0))  # the numbers of the rows that stay
    count = body.add("Squeeze", body.add("Shape", kept), body.numbers(0))
    somebody = body.add("Greater", count, body.constant(np.array(0, np.int64)))
    then = _then(f"{body.prefix}{place + 1}_", segments, layers, policy, place + 1, said, given["mask"], kept, layer)
    named = [f"{body.prefix}logits_{place}", f"{body.prefix}layer_{place}"]
    rest = _else(f"{body.prefix}{place + 1}_else_", said["logits"], layer)
    body.nodes.append(helper.make_node("If", [somebody], named, then_branch=then, else_branch=rest))
    return named[0], named[1]


def _then(
    prefix: str,
    segments: Sequence[onnx.ModelProto],
    layers: Sequence[int],
    policy: Policy,
    place: int,
    said: dict[str, str],
    mask: str,
    kept: str,
    layer: str,
) -> Any:
    """Go on with the rows that stay, cut to the longest, and put their answers where they belong."""
    body = Body(prefix)
    few = body.add("Gather", mask, kept, axis=0)
    tokens = body.add("ReduceSum", body.add("Cast", few, to=TensorProto.INT64), body.numbers(0), keepdims=0)
    places = body.add("Squeeze", body.add("NonZero", tokens), body.numbers(0))
    last = body.add("ReduceMax", places, axes=[0], keepdims=1)
    longest = body.add("Add", last, body.numbers(1))
    cut = [body.numbers(0), longest, body.numbers(1)]  # from, to, along
    hidden = body.add("Slice", body.add("Gather", said["next"], kept, axis=0), *cut)
    few = body.add("Slice", few, *cut)
    logits, deeper = _exit(body, segments, layers, policy, place, {"hidden": hidden, "mask": few})
    where = body.add("Unsqueeze", kept, body.numbers(1))
    logits = body.add("ScatterND", said["logits"], where, logits)
    deeper = body.add("ScatterND", layer, where, deeper)
    return _body_graph(body, f"behind_{place}", logits, deeper)


def _else(prefix: str, logits: str, layer: str) -> Any:
    body = Body(prefix)
    return _body_graph(body, "nobody", body.add("Identity", logits), body.add("Identity", layer))


def _body_graph(body: Body, name: str, logits: str, layer: str) -> Any:
    outputs = [
        helper.make_tensor_value_info(logits, TensorProto.FLOAT, None),
        helper.make_tensor_value_info(layer, TensorProto.INT64, None),
    ]
    return helper.make_graph(body.nodes, f"{body.prefix}{name}", [], outputs, body.constants)
