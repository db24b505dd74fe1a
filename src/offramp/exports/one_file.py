"""A single ONNX graph with early exits inside, for any ONNX Runtime (C++, Java, JavaScript, Triton) without offramp.

Inputs: `input_ids`, `attention_mask` (and `token_type_ids` if the model has them), int64, (rows, tokens); `threshold`,
a float32, and `max_layers`, an int64, as scalars or lists of one number. Outputs: `logits` of each row at its exit,
and `exit_layer`. Token classification has `word_mask` as a further input, 1 for the tokens that are read (the first of
each word), and logits per token. The metadata contain the policy, its calibrated threshold, the exits, the labels, the
maximum length and the tokenizer; `model.json` has the same for runtimes that do not read metadata. A batch has at least
one row.

    segment 1 ─ head ─ rows that continue ─ If(any) ─┬─ then: gather, trim padding, segment 2 ─ … ─ scatter back
                                                     └─ else: the outputs so far

Weights are inside the bodies of the Ifs: as constants of the outer graph they cost a third more time for one row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from offramp.answers import AnswerType
from offramp.answers.token_summary import MIN_PROBABILITY
from offramp.core.runner import Runner
from offramp.errors import BadValue
from offramp.files.writing import replace_files, staged_path
from offramp.policies import Entropy, Never, Policy
from offramp.runtimes.segments import SegmentStepper

__all__ = ["check_policy", "compose", "write_one_file"]

logger = logging.getLogger("offramp")

CERTAIN = 1e4  # logit of a token that is not read


def write_one_file(folder: Path, policy: str | None) -> tuple[Path, Policy]:
    """Write `onnx/model.onnx` from the exported segments; return the file and its policy."""
    from offramp.exports.folder import load_export

    runner = load_export(str(folder), "onnx", None, None, {})
    chosen = runner.config.resolve_policy(policy)
    if policy is None and isinstance(chosen, Never):
        chosen = Entropy(0.0)
        logger.warning("The export has no exit policy: no text exits early. Calibrate it, or set a policy.")
    stepper = runner.stepper
    assert isinstance(stepper, SegmentStepper)
    layers = [point.layer for point in stepper.exits]
    segments = [onnx.load(file) for file in stepper.sources]
    model = compose(segments, layers, chosen, runner.config.answer_type, runner.config.answer_options)
    settings = _settings(runner, folder, chosen, layers)
    for key, value in settings.items():
        text = json.dumps(value, ensure_ascii=False) if key == "labels" else _metadata_text(value)
        model.metadata_props.add(key=key, value=text)
    target = folder / "onnx" / "model.onnx"
    with staged_path(target, overwrite=True) as part:
        onnx.save(model, part)
    replace_files({target.with_suffix(".json"): json.dumps(settings, indent=1, ensure_ascii=False) + "\n"})
    return target, chosen


def _settings(runner: Runner, folder: Path, policy: Policy, layers: Sequence[int]) -> dict[str, Any]:
    """Return what a program needs to go from texts to labels: metadata of the graph, and the content of model.json."""
    has_file = (folder / "tokenizer.json").is_file()
    return {
        "policy": policy.name,
        "threshold": float(f"{policy.parameter:g}"),
        "exits": list(layers),
        "labels": list(runner.config.labels),
        "max_length": runner.limit,
        "tokenizer": "tokenizer.json" if has_file else type(runner.tokenizer).__name__,
        "pad_token_id": runner.pad_token_id,
    }


def _metadata_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_policy(chosen: Policy, answer_type: AnswerType, answer_options: Mapping[str, Any] | None) -> None:
    """Raise if a single graph does not support the policy or the answer type."""
    answer_type.check_single_graph(answer_options)
    if type(chosen).add_to_graph is Policy.add_to_graph or isinstance(getattr(chosen, "threshold", None), tuple):
        raise BadValue(f"`one_file=` supports entropy, confidence and risk with one threshold, got {chosen}.")


class GraphBody:
    """Nodes and constants of a graph under construction; a prefix keeps names unique across bodies.

    `words` is the name of a Boolean per token, whether it is read, if the logits are per token.
    """

    def __init__(self, prefix: str, words: str | None = None):
        self.prefix, self.words = prefix, words
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{self.prefix}{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def constant(self, value: NDArray[Any]) -> str:
        """Add a constant and return its name."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def numbers(self, *values: int) -> str:
        """Add a constant vector of integers and return its name."""
        return self.constant(np.array(values, np.int64))

    def together(self, probability: str) -> str:
        """Add the probability of all words of a row together, (rows, 1); without words return the given one."""
        if self.words is None:
            return probability
        log = self.add("Log", self.add("Max", probability, self.constant(np.array(MIN_PROBABILITY, np.float32))))
        return self.add("Exp", self.add("ReduceSum", log, self.numbers(1), keepdims=1))

    def decide(self, policy: Policy, logits: str, exit_number: int) -> str:
        """Add whether each row exits: with words, whether all of them let it."""
        if self.words is None:
            return policy.add_to_graph(self, logits, exit_number)
        # tokens that are not read count as certain
        label = self.add("Shape", logits, start=2)
        first = self.add("OneHot", self.numbers(0), label, self.constant(np.array([-CERTAIN, CERTAIN], np.float32)))
        read = self.add("Unsqueeze", self.words, self.numbers(2))
        exits = policy.add_to_graph(self, self.add("Where", read, logits, first), exit_number)
        exits = self.add("ReduceMin", self.add("Cast", exits, to=TensorProto.INT32), axes=[1], keepdims=0)
        return self.add("Cast", exits, to=TensorProto.BOOL)

    def inline(self, graph: Any, inputs: dict[str, str]) -> dict[str, str]:
        """Add all nodes of a graph; `inputs` maps its input names to names here; return the same for its outputs."""
        copied = onnx.GraphProto()
        copied.CopyFrom(graph)
        names = self._rename(copied, inputs)
        self.constants.extend(copied.initializer)
        self.nodes.extend(copied.node)
        return {output.name: names[output.name] for output in graph.output}

    def _rename(self, graph: Any, outer: dict[str, str]) -> dict[str, str]:
        """Rename everything in a graph, and in those nested in it (as DeBERTa's have), which also read outer names."""
        names = dict(outer)
        for constant in graph.initializer:
            names[constant.name] = f"{self.prefix}{constant.name}"
            constant.name = names[constant.name]
        for node in graph.node:
            node.input[:] = [names[name] if name else "" for name in node.input]
            for attribute in node.attribute:
                for nested in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                    inside = self._rename(nested, names)
                    for output in nested.output:
                        output.name = inside[output.name]
            names |= {name: f"{self.prefix}{name}" for name in node.output if name}
            node.output[:] = [names[name] if name else "" for name in node.output]
            node.name = f"{self.prefix}{node.name}" if node.name else ""
        return names


def compose(
    segments: Sequence[onnx.ModelProto],
    layers: Sequence[int],
    chosen: Policy,
    answer_type: AnswerType,
    answer_options: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """Combine the segments into one graph with early exits."""
    check_policy(chosen, answer_type, answer_options)
    first, main = segments[0].graph, GraphBody("0_")
    if answer_type.per_token:
        main.words = main.add("Cast", "word_mask", to=TensorProto.BOOL)
    ids = [entry.name for entry in first.input if entry.name != "mask"]
    mask = main.add("Cast", "attention_mask", to=TensorProto.BOOL)
    logits, layer = _exit(main, segments, layers, chosen, 0, {**{name: name for name in ids}, "mask": mask})
    main.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    main.nodes.append(helper.make_node("Identity", [layer], ["exit_layer"]))
    head = next(output for output in first.output if output.name == "logits").type.tensor_type.shape.dim
    shape = ["rows", *(["tokens"] if answer_type.per_token else []), head[-1].dim_value]
    scalars = [helper.make_tensor_value_info("threshold", TensorProto.FLOAT, [])]
    scalars += [helper.make_tensor_value_info("max_layers", TensorProto.INT64, [])]
    names = [ids[0], "attention_mask", *ids[1:], *(["word_mask"] if answer_type.per_token else [])]
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"]) for name in names]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("exit_layer", TensorProto.INT64, ["rows"]),
    ]
    graph = helper.make_graph(main.nodes, "offramp", [*tokens, *scalars], outputs, main.constants)
    opsets = {opset.domain: opset for segment in segments for opset in segment.opset_import}  # int8 may add one
    return helper.make_model(graph, opset_imports=opsets.values(), ir_version=segments[0].ir_version)


def _exit(
    body: GraphBody,
    segments: Sequence[onnx.ModelProto],
    layers: Sequence[int],
    policy: Policy,
    index: int,
    inputs: dict[str, str],
) -> tuple[str, str]:
    """Add a segment, and an If with the next one for rows that continue; return the names of logits and layers."""
    outputs = body.inline(segments[index].graph, inputs)
    rows = body.add("Shape", outputs["logits"], start=0, end=1)
    layer = body.add("Expand", body.numbers(layers[index]), rows)
    if index == len(segments) - 1:
        return outputs["logits"], layer
    continues = body.add("Not", body.decide(policy, outputs["logits"], index + 1))
    deeper = body.add("LessOrEqual", body.constant(np.array(layers[index + 1], np.int64)), "max_layers")
    continues = body.add("And", continues, deeper)
    remaining = body.add("Squeeze", body.add("NonZero", continues), body.numbers(0))  # row indices
    count = body.add("Squeeze", body.add("Shape", remaining), body.numbers(0))
    any_row = body.add("Greater", count, body.constant(np.array(0, np.int64)))
    inner = GraphBody(f"{body.prefix}{index + 1}_", body.words)
    then = _then(inner, segments, layers, policy, index + 1, outputs, inputs["mask"], remaining, layer)
    names = [f"{body.prefix}logits_{index}", f"{body.prefix}layer_{index}"]
    rest = _else(f"{body.prefix}{index + 1}_else_", outputs["logits"], layer)
    body.nodes.append(helper.make_node("If", [any_row], names, then_branch=then, else_branch=rest))
    return names[0], names[1]


def _then(
    body: GraphBody,
    segments: Sequence[onnx.ModelProto],
    layers: Sequence[int],
    policy: Policy,
    index: int,
    outputs: dict[str, str],
    mask: str,
    remaining: str,
    layer: str,
) -> Any:
    """Build the branch that runs the remaining rows, trimmed to the longest, and scatters their outputs back."""
    remaining_mask = body.add("Gather", mask, remaining, axis=0)
    tokens = body.add("ReduceSum", body.add("Cast", remaining_mask, to=TensorProto.INT64), body.numbers(0), keepdims=0)
    positions = body.add("Squeeze", body.add("NonZero", tokens), body.numbers(0))
    last = body.add("ReduceMax", positions, axes=[0], keepdims=1)
    longest = body.add("Add", last, body.numbers(1))
    cut = [body.numbers(0), longest, body.numbers(1)]  # start, end, axis
    hidden = body.add("Slice", body.add("Gather", outputs["next"], remaining, axis=0), *cut)
    remaining_mask = body.add("Slice", remaining_mask, *cut)
    if body.words is not None:
        body.words = body.add("Slice", body.add("Gather", body.words, remaining, axis=0), *cut)
    logits, deeper = _exit(body, segments, layers, policy, index, {"hidden": hidden, "mask": remaining_mask})
    where = body.add("Unsqueeze", remaining, body.numbers(1))
    if body.words is not None:
        length = body.add("Shape", outputs["logits"], start=1, end=2)
        removed = body.add("Sub", length, longest)
        logits = body.add("Pad", logits, body.add("Concat", body.numbers(0, 0, 0, 0), removed, body.numbers(0), axis=0))
    logits = body.add("ScatterND", outputs["logits"], where, logits)
    deeper = body.add("ScatterND", layer, where, deeper)
    return _body_graph(body, f"behind_{index}", logits, deeper)


def _else(prefix: str, logits: str, layer: str) -> Any:
    body = GraphBody(prefix)
    return _body_graph(body, "nobody", body.add("Identity", logits), body.add("Identity", layer))


def _body_graph(body: GraphBody, name: str, logits: str, layer: str) -> Any:
    outputs = [
        helper.make_tensor_value_info(logits, TensorProto.FLOAT, None),
        helper.make_tensor_value_info(layer, TensorProto.INT64, None),
    ]
    return helper.make_graph(body.nodes, f"{body.prefix}{name}", [], outputs, body.constants)
