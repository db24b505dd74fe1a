"""Which matrix products of a tagger lose entities in int8: leave some of them in float32, and count changed texts.

    python benchmarks/int8_products.py TAGGER --name MiniLM --data DATA

TAGGER is a model folder, DATA a folder with CoNLL2003. The scales and the smoothing come from 256 training texts; the
changed texts are those of the development texts whose entities differ from float32. The record is
`results/tokens/int8-NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import torch

import offramp
from offramp.answers import TOKEN
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint
from offramp.data.table import Columns, read_table
from offramp.exports.exporter import GraphSource
from offramp.exports.int8 import quantize
from offramp.exports.products import matmul_weights
from offramp.runtimes.onnx import OnnxGraph
from offramp.runtimes.segments import SegmentStepper
from offramp.training.imitation.new_exits import keep_exits

RESULTS = Path(__file__).parent / "results" / "tokens"
KINDS = {  # by the names of the products
    "query, key, value": re.compile(r"query|key|value|q_lin|k_lin|v_lin"),
    "attention output": re.compile(r"attention/output|out_lin"),
    "first of the feed-forward": re.compile(r"intermediate|lin1"),
    "second of the feed-forward": re.compile(r"layer\.\d+/output|lin2"),
    "classifier": re.compile(r"classifier"),
}


def in_float32(graph: onnx.ModelProto, is_kept: Callable[[str], bool]) -> tuple[onnx.ModelProto, int]:
    """Return the graph with some products hidden from quantization, and their number."""
    model = onnx.ModelProto()
    model.CopyFrom(graph)
    nodes = [node for products in matmul_weights(model.graph).values() for node, _ in products]
    kept = [node for node in nodes if is_kept(node.name)]
    for number, node in enumerate(kept):
        hidden = f"float32_{number}"
        model.graph.node.insert(0, onnx.helper.make_node("Identity", [node.input[1]], [hidden]))
        node.input[1] = hidden
    return model, len(kept)


def main() -> None:
    """Measure every variant and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tagger")
    parser.add_argument("--name", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--methods", default="token,static")
    parser.add_argument("--layers", action="store_true", help="also leave each layer in float32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = {
        split: read_table(str(args.data / "CoNLL2003" / f"{split}.txt"), Columns()).texts
        for split in ("train", "valid")
    }
    model = offramp.AdaptiveModel.from_pretrained(args.tagger).eval()
    model = keep_exits(model, [model.config.num_layers])
    source = GraphSource(model, tables["train"][:256])
    (graph,), (ranges,) = source.segments([model.config.num_layers]), source.ranges([model.config.num_layers])
    own = model.runner()
    texts = tables["valid"][: args.texts]
    points = (ExitPoint(1, model.config.num_layers),)

    def answers(candidate: onnx.ModelProto, name: str) -> tuple[Any, float]:
        stepper = SegmentStepper("onnx", name, points, (OnnxGraph(candidate.SerializeToString(), 1),), TOKEN)
        runner = Runner(own.name, model.config, own.tokenizer, stepper)
        values, seconds = None, []
        for _ in range(3):
            start = time.process_time()
            values = runner.answer(texts, policy="never", quiet=True).values
            seconds.append(time.process_time() - start)
        return values, statistics.median(seconds) / len(texts)

    full, seconds = answers(graph, "float32")
    record: dict[str, Any] = {"texts": len(texts), "milliseconds": {"float32": round(1000 * seconds, 3)}, "changed": {}}
    groups: dict[str, Callable[[str], bool]] = {"nothing": lambda name: False}
    for kind, pattern in KINDS.items():
        groups[kind] = lambda name, pattern=pattern: bool(pattern.search(name))  # type: ignore[misc]
    for layer in range(model.config.num_layers if args.layers else 0):
        groups[f"layer {layer + 1}"] = lambda name, layer=layer: f"layer.{layer}/" in name  # type: ignore[misc]
    for method in args.methods.split(","):
        for group, is_kept in groups.items():
            variant, count = in_float32(graph, is_kept)
            if group != "nothing" and not count:
                continue
            found, seconds = answers(quantize(variant, method, ranges), f"int8-{method}")
            changed = float(TOKEN.differ(found, full).mean())
            record["changed"].setdefault(method, {})[group] = round(changed, 5)
            record["milliseconds"][f"{method}, {group} in float32"] = round(1000 * seconds, 3)
            print(method, group, count, f"{100 * changed:.2f} %", f"{1000 * seconds:.2f} ms", flush=True)
    record |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "offramp": offramp.__version__,
        "machine": cpu_name(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"int8-{args.name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
