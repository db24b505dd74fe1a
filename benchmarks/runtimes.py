"""Early exits on int8 kernels: the results of docs/results/speed.md that `offramp benchmark` does not measure.

    python benchmarks/runtimes.py precisions MODEL --data-dir GLUE     predictions and exits that int8 changes
    python benchmarks/runtimes.py forced [--hidden 384]                measured ÷ computed speedup, forced exits
    python benchmarks/runtimes.py tuned MODEL --data-dir GLUE          the same with the exits selected by `tune`
    python benchmarks/runtimes.py one-file MODEL [--node DIR]          a single graph, in Python and in Node
    python benchmarks/runtimes.py growth MODEL                         texts per second by length and by batch size

MODEL has a calibrated ONNX export (`offramp tune`); in DIR, npm has installed onnxruntime-node and
@huggingface/tokenizers. Each command writes a file to benchmarks/results/runtimes, from which write_performance.py
writes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig

import offramp
from exit_efficiency import Forced, thresholds_for
from offramp import AdaptiveModel
from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, load_rows
from offramp.evaluation.traces.operations import count_operations
from offramp.exports.exporter import Exporter
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.texts import texts_for_export
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.policies import Never
from offramp.runtimes.segments import SegmentStepper
from setting import make_tokenizer, read_texts

RESULTS = Path(__file__).parent / "results" / "runtimes"
NODE = Path(__file__).parent.parent / "examples" / "one_file.mjs"


def about(**more: Any) -> dict[str, Any]:
    """Return date, machine, versions and `more`."""
    import onnxruntime

    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    return {"date": date.today().isoformat(), "cpu": cpu_name(), "threads": torch.get_num_threads(), **versions, **more}


def save(name: str, results: dict[str, Any]) -> None:
    """Write and print a stage's results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results, indent=1))


def batches_of(runner: Runner, texts: Sequence[Text], size: int) -> list[tuple[Any, Batch]]:
    """Return batches of texts of similar length, each with its row numbers."""
    chunks = runner.chunks(texts, progress=False, quiet=True, chunk=len(texts))
    return [(rows + chunk.offset, batch) for chunk in chunks for rows, batch in chunk.batches_of(size)]


def time_in_turns(
    functions: dict[str, Callable[[Any, Any], Any]], batches: Sequence[Any], rounds: int
) -> dict[str, float]:
    """Return seconds per function; they take turns on every batch, and a batch's time is the median of its rounds."""
    names = list(functions)
    times: dict[str, list[list[float]]] = {name: [[] for _ in batches] for name in names}
    with torch.inference_mode():
        for turn in range(-1, rounds):  # the first round is a warm-up
            for index, (rows, batch) in enumerate(batches):
                first = (index + turn) % len(names)
                for name in names[first:] + names[:first]:
                    start = time.perf_counter()
                    functions[name](rows, batch)
                    if turn >= 0:
                        times[name][index].append(time.perf_counter() - start)
    return {name: float(sum(np.median(rounds_of_batch) for rounds_of_batch in times[name])) for name in names}


# -- int8 precisions -----------------------------------------------------------------------------------


def precisions(args: argparse.Namespace) -> None:
    """Measure, for every int8 mode, smoothed or not, how predictions and exits differ from float32."""
    model = AdaptiveModel.from_pretrained(args.model).eval()
    data = DataOptions(task="sst-2", data_dir=args.data_dir)
    scales = texts_for_export(args.model, model.config, data).scales
    dev = load_rows(args.model, model.config, data, "dev").rows.texts
    policy = offramp.load(args.model, "onnx").config.exit_policy
    texts, rows = Texts(scales, dev), []
    exact = model.runner().answer(dev, policy=policy)
    for int8, smooth in (
        ("none", False),
        *((int8, smooth) for int8 in ("static", "mixed", "token") for smooth in (True, False)),
        ("dynamic", False),
    ):
        exporter = Exporter(model, texts, ExportOptions(int8=int8, smooth=smooth, force=True))
        export = exporter.make()
        runner = Runner(args.model, model.config, model.tokenizer, exporter.stepper(export))
        layers_by_batch = {size: exit_layers(runner, dev, size, policy) for size in (1, 32)}
        assert export.checked is not None
        rows.append(
            {
                "precision": export.precision,
                "smoothed": export.smoothed,
                "agreement": list(export.checked.agreement),
                "worst": export.checked.worst,
                "other_exits": float((layers_by_batch[32] != exact.layer).mean()),
                "other_exits_by_batch": float((layers_by_batch[1] != layers_by_batch[32]).mean()),
            }
        )
    layers = [spec.layer for spec in model.config.exit_specs]
    save(f"precisions-{args.name}", about(rows=rows, layers=layers, texts=len(dev), policy=str(policy)))


def exit_layers(runner: Runner, texts: Sequence[Text], size: int, policy: Any) -> Any:
    """Return the exit layer of each text, at this batch size."""
    layers = np.empty(len(texts), np.int64)
    with torch.inference_mode():
        for rows, batch in batches_of(runner, texts, size):
            layers[rows] = run(runner.stepper, batch, policy).layer
    return layers


# -- measured ÷ computed --------------------------------------------------------------------------------


def forced(args: argparse.Namespace) -> None:
    """Measure an encoder with random weights, with exits that are drawn and forced."""
    texts = read_texts(None, 256)
    tokenizer = make_tokenizer(texts)
    torch.manual_seed(0)
    sizes = {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden}
    backbone = BertConfig(vocab_size=8000, num_hidden_layers=12, num_attention_heads=args.hidden // 32, **sizes)
    rows = []
    for exits in ((3, 6, 9, 12), tuple(range(1, 13))):
        model = AdaptiveModel(AdaptiveConfig(backbone=backbone, exits=[ExitSpec(layer) for layer in exits])).eval()
        model.tokenizer = tokenizer
        drawn = torch.from_numpy(np.random.default_rng(0).choice(exits, size=len(texts)))
        thresholds, computed = thresholds_for(drawn, exits), 12 / float(drawn.float().mean())
        segments, full = (_int8_stepper(model, texts, layers) for layers in (exits, (12,)))
        functions: dict[str, Any] = {
            "full": lambda rows, batch, stepper=full: stepper.full_model(batch),
            "full again": lambda rows, batch, stepper=full: stepper.full_model(batch),
            "never": lambda rows, batch, stepper=segments: run(stepper, batch, Never()),
            "leaving": lambda rows, batch, s=segments, t=thresholds: run(s, batch, Forced(t[torch.from_numpy(rows)])),
        }
        for size in (1, 8, 32):
            seconds = time_in_turns(functions, batches_of(model.runner(), texts, size), 5)
            print(exits, size, computed, seconds)
            rows.append({"exits": list(exits), "batch": size, "computed": computed, **seconds})
    save(f"forced-{args.hidden}", about(rows=rows, hidden=args.hidden, texts=len(texts)))


def _int8_stepper(model: AdaptiveModel, texts: Sequence[Text], exits: Sequence[int]) -> SegmentStepper:
    options = ExportOptions(int8="static", exits=list(exits), force=True)
    exporter = Exporter(model, Texts(list(texts), []), options, quiet=True)
    return exporter.stepper(exporter.make())


def tuned(args: argparse.Namespace) -> None:
    """Compare the export with full depth in the same precision, and profile the runtime."""
    model, runner = AdaptiveModel.from_pretrained(args.model).eval(), offramp.load(args.model, "onnx")
    data, policy = DataOptions(task="sst-2", data_dir=args.data_dir), runner.config.exit_policy
    texts = load_rows(args.model, model.config, data, "dev").rows.texts[::4]
    int8 = runner.dtype.removeprefix("int8-").replace("float32", "none")
    options = ExportOptions(int8=int8, exits=[model.config.num_layers], force=True)
    exporter = Exporter(model, Texts(texts_for_export(args.model, model.config, data).scales), options, quiet=True)
    export = exporter.make()
    full, rows = exporter.stepper(export), []
    functions: dict[str, Any] = {
        "full": lambda rows, batch: full.full_model(batch),
        "full again": lambda rows, batch: full.full_model(batch),
        "leaving": lambda rows, batch: run(runner.stepper, batch, policy),
    }
    lengths = runner.encoder()(texts, 0).lengths
    spent, heads = count_operations(runner.config).at(lengths)  # with the heads on the way, layer 0 included
    full_operations = spent[:, -1] - heads[:, :-1].sum(1)
    for size in (1, 8, 32):
        layers = exit_layers(runner, texts, size, policy)
        seconds = time_in_turns(functions, batches_of(runner, texts, size), 3)
        computed = model.config.num_layers / float(layers.mean())
        by_token = model.config.num_layers / float((layers * lengths).sum() / lengths.sum())
        exits = np.searchsorted([point.layer for point in runner.stepper.exits], layers)
        by_operations = float(full_operations.sum() / spent[np.arange(len(texts)), exits].sum())
        both = {"computed_by_token": by_token, "computed_by_operations": by_operations}
        rows.append({"batch": size, "computed": computed, **both, **seconds})
        print(rows[-1])
    exits = [point.layer for point in runner.stepper.exits]
    shares = _profile(export.graphs[0], batches_of(runner, texts, 32)[len(texts) // 64][1])
    more = {"exits": exits, "policy": str(policy), "precision": runner.dtype, "profile": shares, "texts": len(texts)}
    save(f"tuned-{args.name}-{torch.get_num_threads()}", about(rows=rows, **more))


def _profile(graph: bytes, batch: Batch) -> dict[str, float]:
    """Return each operator's share of the time at full depth, for one batch of 32 rows."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = torch.get_num_threads(), True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(graph, options)
        feed = {name: value.numpy() for name, value in batch.as_inputs().items()}
        feed["mask"] = feed.pop("attention_mask").astype(bool)
        for _ in range(5):
            session.run(None, {node.name: feed[node.name] for node in session.get_inputs()})
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            times[event["args"]["op_name"]] = times.get(event["args"]["op_name"], 0) + event["dur"]
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return {name: round(duration / sum(times.values()), 4) for name, duration in ranked[:8]}


# -- one file -------------------------------------------------------------------------------------------


def one_file(args: argparse.Namespace) -> None:
    """Compare the single graph with the Python loop, in exits and seconds; and run it in Node."""
    from offramp.exports.one_file import write_one_file
    from offramp.runtimes.onnx import OnnxGraph

    file, policy = write_one_file(Path(args.model), None)
    runner, graph = offramp.load(args.model, "onnx"), OnnxGraph(file)
    data = load_rows(args.model, runner.config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev")
    texts = data.rows.texts
    settings = {"threshold": np.array(getattr(policy, "threshold"), np.float32)}  # noqa: B009
    settings["max_layers"] = np.array(runner.config.num_layers, np.int64)

    def run_graph(rows: Any, batch: Batch) -> Any:
        feed = {name: value.numpy() for name, value in batch.as_inputs().items() if name in graph.inputs}
        return graph(feed | {"attention_mask": feed["attention_mask"].astype(np.int64)} | settings)

    functions: dict[str, Any] = {
        "loop": lambda rows, batch: run(runner.stepper, batch, policy),
        "one file": run_graph,
    }
    rows = []
    for size in (1, 8, 32):
        batches = batches_of(runner, texts, size)
        differ = 0
        with torch.inference_mode():
            for indices, batch in batches:
                outputs = run_graph(indices, batch)
                differ += int((outputs["exit_layer"] != run(runner.stepper, batch, policy).layer).sum())
        seconds = time_in_turns(functions, batches, 3)
        rows.append({"batch": size, "other_exits": differ, "texts": len(texts), **seconds})
    node = None if args.node is None else _run_node(Path(args.model), runner, texts, args.node)
    save(f"one-file-{args.name}", about(rows=rows, node=node, policy=str(policy)))


def _run_node(folder: Path, runner: Runner, texts: Sequence[Text], node_folder: Path) -> dict[str, Any]:
    """Run the same texts in Node; return the number of other exits and the largest difference of the scores."""
    with tempfile.TemporaryDirectory() as work:
        file, script = Path(work) / "texts.txt", Path(work) / NODE.name
        file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
        script.write_text(NODE.read_text())
        (Path(work) / "node_modules").symlink_to(node_folder.resolve() / "node_modules")
        call = ["node", str(script), str(folder.resolve()), str(file)]
        lines = subprocess.run(call, capture_output=True, text=True, check=True).stdout.splitlines()
    version = json.loads((node_folder / "node_modules/onnxruntime-node/package.json").read_text())["version"]
    pairs = list(zip(map(json.loads, lines), runner.predict(texts), strict=True))
    other = sum(node["exit_layer"] != answer.exit_layer for node, answer in pairs)
    difference = max(abs(node["score"] - answer.score) for node, answer in pairs)
    return {"onnxruntime-node": version, "other_exits": other, "scores_apart": difference, "texts": len(pairs)}


# -- growth ---------------------------------------------------------------------------------------------


def growth(args: argparse.Namespace) -> None:
    """Measure texts per second by length at 16 rows, and by batch size at real lengths: full depth and early exits."""
    runner = offramp.load(args.model, "onnx")
    policy, rng = runner.config.exit_policy, np.random.default_rng(0)
    data = load_rows(args.model, runner.config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev").rows.texts
    ids = runner.config.answer_type.encode(data, runner.tokenizer, 512).ids
    words = ids.values[ids.values > 2000]
    functions: dict[str, Any] = {
        "full": lambda rows, batch: runner.stepper.full_model(batch),
        "leaving": lambda rows, batch: run(runner.stepper, batch, policy),
    }
    max_length = runner.config.family.max_length(runner.config.backbone)
    lengths = []
    for length in (16, 32, 64, 128, 256, min(512, max_length)):
        table = rng.choice(words, (16, length))
        table[:, 0] = ids.values[0]
        batch = Batch.from_tensors(torch.from_numpy(table.astype(np.int64)))
        seconds = time_in_turns(functions, [(np.arange(16), batch)], 3)
        lengths.append({"length": length, **{name: 16 / value for name, value in seconds.items()}})
    sizes = []
    for size in (1, 2, 4, 8, 16, 32, 64, 128):
        seconds = time_in_turns(functions, batches_of(runner, data[:256], size), 3)
        sizes.append({"batch": size, **{name: 256 / value for name, value in seconds.items()}})
    save(f"growth-{args.name}", about(lengths=lengths, sizes=sizes, policy=str(policy), rows=16))


def main() -> None:
    """Run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = {"precisions": precisions, "forced": forced, "tuned": tuned, "one-file": one_file, "growth": growth}
    parser.add_argument("stage", choices=list(stages))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--name", help="name of the results (default: name of the model folder)")
    parser.add_argument("--data-dir")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.name = args.name or (Path(args.model).name if args.model else None)
    stages[args.stage](args)


if __name__ == "__main__":
    main()
