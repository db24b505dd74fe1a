"""Measure a model against what people use instead, in one run, on your own texts.

The plain Hugging Face model and its pipeline, bfloat16 where the CPU has it, full-depth ONNX Runtime and OpenVINO in
every precision, a static model of equal cost, and offramp on torch and on every export, each with its own calibrated
policy. All take turns, tokenising included. Quality is the share of answers like the full float32 model's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from offramp.cli import arguments
from offramp.cli.data import add_data, given
from offramp.cli.streams import say
from offramp.errors import BadValue, missing_library
from offramp.files.writing import check_free, staged_file, writing

EXAMPLES = """\
examples:
  offramp benchmark MODEL                                       (on the dev rows of its training)
  offramp benchmark MODEL --texts texts.txt --batch 1,32 --peers plain,onnx --json results.json
  offramp benchmark MODEL --figure speed.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp benchmark`."""
    arguments.add_model(parser)
    parser.add_argument("--texts", metavar="FILE", help="texts to answer (the same as --file)")
    parser.add_argument("--batch", type=counts, default=(1, 8, 32, 64), metavar="N", help="batch sizes (1,8,32,64)")
    parser.add_argument(
        "--peers",
        type=lambda written: tuple(written.split(",")),
        metavar="P",
        help="against whom: plain, pipeline, bfloat16, onnx, openvino, originals (all that are installed)",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="texts that seconds are measured on, spread over the file (all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="passes over the texts; the median counts (3)"
    )
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory (a process per contestant)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw it there, .svg or .png")
    parser.add_argument("--overwrite", action="store_true", help="replace these files if they exist")
    add_data(parser, "The split is dev.")


def counts(written: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(one) for one in written.split(","))


def run(args: argparse.Namespace) -> int:
    """Measure, print the table."""
    import importlib.util

    for name in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise BadValue(f"The benchmark needs {name}: pip install '.[onnx]' in a clone of offramp.")
    try:
        from offramp.data.rows import DataOptions, rows_for
        from offramp.evaluation.benchmark.peers import PEERS
        from offramp.evaluation.benchmark.run import BenchmarkOptions, benchmark
        from offramp.evaluation.benchmark.table import draw, table
        from offramp.export.texts import texts_for
    except ImportError as err:
        raise missing_library("The benchmark", err) from err
    import torch

    from offramp.model.adaptive import AdaptiveModel

    for file in (args.json, args.figure):
        if file is not None:
            check_free(file, args.overwrite)
    if args.texts is not None:
        if args.file is not None:
            raise BadValue("--texts and --file are the same; give one of them.")
        args.file = args.texts
    arguments.check_threads(args.threads)
    if args.rows is not None and args.rows < 1:
        raise BadValue(f"rows is {args.rows}; it is at least 1.")
    if args.figure is not None and args.figure.suffix not in (".svg", ".png"):
        raise BadValue(f"{args.figure}: a figure ends in .svg or .png.")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    installed = [name for name in PEERS if name != "openvino" or importlib.util.find_spec(name) is not None]
    model = AdaptiveModel.from_pretrained(args.model).eval()
    data = rows_for(args.model, model.config, given(args), "dev")
    chosen = args.peers or tuple(installed)
    options = BenchmarkOptions(args.batch, chosen, args.rounds, args.rows, args.threads, not args.no_memory)
    texts = texts_for(args.model, model.config, DataOptions(task=args.task, data_dir=args.data_dir))
    if not texts.scales:  # nothing else is at hand
        texts = texts_for(args.model, model.config, given(args))
    results = benchmark(model, data, texts, options, say)
    if args.json is not None:
        with staged_file(args.json, args.overwrite) as out:
            out.write(json.dumps(results, indent=1) + "\n")
    say(table(results))
    if args.figure is not None:
        with writing(args.figure):
            draw(results, args.figure)
    return 0
