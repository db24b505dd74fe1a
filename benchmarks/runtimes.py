"""What exits are worth on int8 kernels: the figures of docs/results/speed.md beside those of `offramp benchmark`.

    python benchmarks/runtimes.py precisions MODEL --data-dir GLUE     int8 kinds: answers and exits that change
    python benchmarks/runtimes.py forced [--hidden 384]                measured ÷ computed, exits drawn and forced
    python benchmarks/runtimes.py tuned MODEL --data-dir GLUE          the same with the exits that tune picked
    python benchmarks/runtimes.py one-file MODEL [--node DIR]          one graph against the host's loop, and Node
    python benchmarks/runtimes.py growth MODEL                         texts a second by length and by batch

MODEL has an ONNX export that was calibrated (`offramp tune`); DIR has onnxruntime-node installed by npm. Each writes a
file into benchmarks/results/runtimes; write_performance.py makes the page of them.
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
from offramp.exports.exporter import Exporter
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.texts import texts_for_export
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.policies import Never
from offramp.runtimes.segments import SegmentStepper
from setting import make_tokenizer, read_texts

RESULTS = Path(__file__).parent / "results" / "runtimes"
NODE = Path(__file__).parent.parent / "examples" / "one_file.mjs"


def about(**more: Any) -> dict[str, Any]:
    """When, where, with what."""
    import onnxruntime

    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    return {"date": date.today().isoformat(), "cpu": cpu_name(), "threads": torch.get_num_threads(), **versions, **more}


def keep(name: str, results: dict[str, Any]) -> None:
    """Write a stage's figures."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results, indent=1))


def batches_of(runner: Runner, texts: Sequence[Text], size: int) -> list[tuple[Any, Batch]]:
    """Rows of like lengths, and their batch."""
    chunks = runner.chunks(texts, progress=False, quiet=True, chunk=len(texts))
    return [(rows + chunk.offset, batch) for chunk in chunks for rows, batch in chunk.batches_of(size)]


def in_turns(ways: dict[str, Callable[[Any, Any], Any]], batches: Sequence[Any], rounds: int) -> dict[str, float]:
    """Seconds of each way: they take turns on every batch; of a batch the median of its rounds."""
    names = list(ways)
    spent: dict[str, list[list[float]]] = {name: [[] for _ in batches] for name in names}
    with torch.inference_mode():
        for turn in range(-1, rounds):
            for place, (rows, batch) in enumerate(batches):
                first = (place + turn) % len(names)
                for name in names[first:] + names[:first]:
                    start = time.perf_counter()
                    ways[name](rows, batch)
                    if turn >= 0:
                        spent[name][place].append(time.perf_counter() - start)
    return {name: float(sum(np.median(each) for each in spent[name])) for name in names}


# -- int8 kinds ----------------------------------------------------------------------------------------


def precisions(args: argparse.Namespace) -> None:
    """Every kind, smoothed or not: each exit's answers, and who leaves elsewhere than in float32."""
    model = AdaptiveModel.from_pretrained(args.model).eval()
    given = DataOptions(task="sst-2", data_dir=args.data_dir)
    scales = texts_for_export(args.model, model.config, given).scales
    dev = load_rows(args.model, model.config, given, "dev").rows.texts
    policy = offramp.load(args.model, "onnx").config.exit_policy
    texts, rows = Texts(scales, dev), []
    exact = model.runner().answer(dev, policy=policy)
    for kind, smooth in (
        ("none", False),
        *((kind, on) for kind in ("static", "token") for on in (True, False)),
        ("dynamic", False),
    ):
        making = Exporter(model, texts, ExportOptions(int8=kind, smooth=smooth, force=True))
        made = making.make()
        runner = Runner(args.model, model.config, model.tokenizer, making.stepper(made))
        leaving = {size: leave(runner, dev, size, policy) for size in (1, 32)}
        assert made.checked is not None
        rows.append(
            {
                "precision": made.precision,
                "smoothed": made.smoothed,
                "agreement": list(made.checked.agreement),
                "worst": made.checked.worst,
                "other_exits": float((leaving[32] != exact.layer).mean()),
                "other_exits_by_batch": float((leaving[1] != leaving[32]).mean()),
            }
        )
    layers = [spec.layer for spec in model.config.exit_specs]
    keep(f"precisions-{args.name}", about(rows=rows, layers=layers, texts=len(dev), policy=str(policy)))


def leave(runner: Runner, texts: Sequence[Text], size: int, policy: Any) -> Any:
    """The layer that each text leaves at, in batches of so many."""
    layers = np.empty(len(texts), np.int64)
    with torch.inference_mode():
        for rows, batch in batches_of(runner, texts, size):
            layers[rows] = run(runner.stepper, batch, policy).layer.numpy()
    return layers


# -- measured ÷ computed --------------------------------------------------------------------------------


def forced(args: argparse.Namespace) -> None:
    """A random encoder; every text's exit is drawn beforehand and forced."""
    texts = read_texts(None, 256)
    tokenizer = make_tokenizer(texts)
    torch.manual_seed(0)
    shape = {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden}
    backbone = BertConfig(vocab_size=8000, num_hidden_layers=12, num_attention_heads=args.hidden // 32, **shape)
    rows = []
    for exits in ((3, 6, 9, 12), tuple(range(1, 13))):
        model = AdaptiveModel(AdaptiveConfig(backbone=backbone, exits=[ExitSpec(layer) for layer in exits])).eval()
        model.tokenizer = tokenizer
        drawn = torch.from_numpy(np.random.default_rng(0).choice(exits, size=len(texts)))
        thresholds, computed = thresholds_for(drawn, exits), 12 / float(drawn.float().mean())
        cut, whole = (_int8(model, texts, where) for where in (exits, (12,)))
        ways: dict[str, Any] = {
            "full": lambda rows, batch, stepper=whole: stepper.full_model(batch),
            "full again": lambda rows, batch, stepper=whole: stepper.full_model(batch),
            "never": lambda rows, batch, stepper=cut: run(stepper, batch, Never()),
            "leaving": lambda rows, batch, s=cut, t=thresholds: run(s, batch, Forced(t[torch.from_numpy(rows)])),
        }
        for size in (1, 8, 32):
            seconds = in_turns(ways, batches_of(model.runner(), texts, size), 5)
            print(exits, size, computed, seconds)
            rows.append({"exits": list(exits), "batch": size, "computed": computed, **seconds})
    keep(f"forced-{args.hidden}", about(rows=rows, hidden=args.hidden, texts=len(texts)))


def _int8(model: AdaptiveModel, texts: Sequence[Text], exits: Sequence[int]) -> SegmentStepper:
    options = ExportOptions(int8="static", exits=list(exits), force=True)
    making = Exporter(model, Texts(list(texts), []), options, quiet=True)
    return making.stepper(making.make())


def tuned(args: argparse.Namespace) -> None:
    """The export as it is against its own precision without cuts; and what the runtime spends its time on."""
    model, runner = AdaptiveModel.from_pretrained(args.model).eval(), offramp.load(args.model, "onnx")
    given, policy = DataOptions(task="sst-2", data_dir=args.data_dir), runner.config.exit_policy
    texts = load_rows(args.model, model.config, given, "dev").rows.texts[::4]
    kind = runner.dtype.removeprefix("int8-").replace("float32", "none")
    options = ExportOptions(int8=kind, exits=[model.config.num_layers], force=True)
    making = Exporter(model, Texts(texts_for_export(args.model, model.config, given).scales), options, quiet=True)
    made = making.make()
    whole, rows = making.stepper(made), []
    ways: dict[str, Any] = {
        "full": lambda rows, batch: whole.full_model(batch),
        "full again": lambda rows, batch: whole.full_model(batch),
        "leaving": lambda rows, batch: run(runner.stepper, batch, policy),
    }
    lengths = runner.encoder()(texts, 0).lengths
    for size in (1, 8, 32):
        layers = leave(runner, texts, size, policy)
        seconds = in_turns(ways, batches_of(runner, texts, size), 3)
        computed = model.config.num_layers / float(layers.mean())
        by_token = model.config.num_layers / float((layers * lengths).sum() / lengths.sum())
        rows.append({"batch": size, "computed": computed, "computed_by_token": by_token, **seconds})
        print(rows[-1])
    exits = [point.layer for point in runner.stepper.exits]
    shares = _profile(made.graphs[0], batches_of(runner, texts, 32)[len(texts) // 64][1])
    more = {"exits": exits, "policy": str(policy), "precision": runner.dtype, "profile": shares, "texts": len(texts)}
    keep(f"tuned-{args.name}-{torch.get_num_threads()}", about(rows=rows, **more))


def _profile(graph: bytes, batch: Batch) -> dict[str, float]:
    """The share of each kind of node in the full depth's time, one batch of 32 rows."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = torch.get_num_threads(), True
    with tempfile.TemporaryDirectory() as place:
        options.profile_file_prefix = f"{place}/profile"
        session = onnxruntime.InferenceSession(graph, options)
        feed = {name: value.numpy() for name, value in batch.as_inputs().items()}
        feed["mask"] = feed.pop("attention_mask").astype(bool)
        for _ in range(5):
            session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            spent[event["args"]["op_name"]] = spent.get(event["args"]["op_name"], 0) + event["dur"]
    ranked = sorted(spent.items(), key=lambda one: -one[1])
    return {name: round(each / sum(spent.values()), 4) for name, each in ranked[:8]}


# -- one file -------------------------------------------------------------------------------------------


def one_file(args: argparse.Namespace) -> None:
    """The nested graph against the loop outside, exit for exit, in seconds; and the same from Node."""
    from offramp.exports.one_file import write_one_file
    from offramp.runtimes.onnx import OnnxGraph

    file, policy = write_one_file(Path(args.model), None)
    runner, graph = offramp.load(args.model, "onnx"), OnnxGraph(file)
    data = load_rows(args.model, runner.config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev")
    texts = data.rows.texts
    number = {"threshold": np.array(getattr(policy, "threshold"), np.float32)}  # noqa: B009
    number["max_layers"] = np.array(runner.config.num_layers, np.int64)

    def alone(rows: Any, batch: Batch) -> Any:
        feed = {name: value.numpy() for name, value in batch.as_inputs().items() if name in graph.inputs}
        return graph(feed | {"attention_mask": feed["attention_mask"].astype(np.int64)} | number)

    ways: dict[str, Any] = {"loop": lambda rows, batch: run(runner.stepper, batch, policy), "one file": alone}
    rows, answers = [], []
    for size in (1, 8, 32):
        batches = batches_of(runner, texts, size)
        differ = 0
        with torch.inference_mode():
            for places, batch in batches:
                found = alone(places, batch)
                differ += int((found["exit_layer"] != run(runner.stepper, batch, policy).layer.numpy()).sum())
                if size == 32:
                    answers.append((batch, found))
        rows.append({"batch": size, "other_exits": differ, "texts": len(texts), **in_turns(ways, batches, 3)})
    node = None if args.node is None else _node(file, answers, number, args.node)
    keep(f"one-file-{args.name}", about(rows=rows, node=node, policy=str(policy)))


def _node(file: Path, answers: Sequence[Any], number: dict[str, Any], place: Path) -> dict[str, Any]:
    """The same batches from JavaScript; where it leaves elsewhere, and how far logits lie apart."""
    with tempfile.TemporaryDirectory() as folder:
        given = [
            {name: value.long().tolist() for name, value in batch.as_inputs().items()}
            | {"threshold": float(number["threshold"])}
            for batch, _ in answers
        ]
        (Path(folder) / "batches.json").write_text(json.dumps(given))
        script = Path(folder) / NODE.name
        script.write_text(NODE.read_text())
        (Path(folder) / "node_modules").symlink_to(place.resolve() / "node_modules")
        call = ["node", str(script), str(file.resolve()), str(Path(folder) / "batches.json")]
        said = json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    version = json.loads((place / "node_modules/onnxruntime-node/package.json").read_text())["version"]
    pairs = list(zip(said["answers"], answers, strict=True))
    other = sum(int((np.array(one["exit_layer"]) != found["exit_layer"]).sum()) for one, (_, found) in pairs)
    apart = max(
        float(np.abs(np.array(one["logits"]).reshape(found["logits"].shape) - found["logits"]).max())
        for one, (_, found) in pairs
    )
    return {"onnxruntime-node": version, "other_exits": other, "logits_apart": apart, "batches": len(pairs)}


# -- growth ---------------------------------------------------------------------------------------------


def growth(args: argparse.Namespace) -> None:
    """Texts a second by length at 16 rows, and by batch at the usual length: the full depth and leaving."""
    runner = offramp.load(args.model, "onnx")
    policy, draw = runner.config.exit_policy, np.random.default_rng(0)
    data = load_rows(args.model, runner.config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev").rows.texts
    ids = runner.config.answer_type.encode(data, runner.tokenizer, 512).ids
    words = ids.values[ids.values > 2000]
    ways: dict[str, Any] = {
        "full": lambda rows, batch: runner.stepper.full_model(batch),
        "leaving": lambda rows, batch: run(runner.stepper, batch, policy),
    }
    longest = runner.config.family.max_length(runner.config.backbone)
    lengths = []
    for length in (16, 32, 64, 128, 256, min(512, longest)):
        table = draw.choice(words, (16, length))
        table[:, 0] = ids.values[0]
        batch = Batch.from_tensors(torch.from_numpy(table.astype(np.int64)))
        seconds = in_turns(ways, [(np.arange(16), batch)], 3)
        lengths.append({"length": length, **{name: 16 / each for name, each in seconds.items()}})
    sizes = []
    for size in (1, 2, 4, 8, 16, 32, 64, 128):
        seconds = in_turns(ways, batches_of(runner, data[:256], size), 3)
        sizes.append({"batch": size, **{name: 256 / each for name, each in seconds.items()}})
    keep(f"growth-{args.name}", about(lengths=lengths, sizes=sizes, policy=str(policy), rows=16))


def main() -> None:
    """Parse and run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = {"precisions": precisions, "forced": forced, "tuned": tuned, "one-file": one_file, "growth": growth}
    parser.add_argument("stage", choices=list(stages))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--name", help="what the results are called (the model's folder)")
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
