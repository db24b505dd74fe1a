"""Measure a model against baselines in one run, on your own texts and this machine.

Baselines: the plain Hugging Face model and its pipeline, bfloat16 if the CPU supports it, the full model on ONNX
Runtime and OpenVINO in every precision, in torch.compile, torch int8, torchao, CTranslate2 and llama.cpp where they are
installed, and a shallower static model of equal cost. offramp runs on torch and on every export, each with its
calibrated policy. All entries take turns; times include tokenization. Agreement is the fraction of predictions equal to
those of the full model in float32.

Other libraries are not compared for rerankers and token classification. For a reranker, the batch size is the number of
queries per call, agreement is the fraction of the full model's top k that is kept, and int8 models at full depth that
score only the first documents are further baselines.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp benchmark my-model  # on the dev rows of its training run
  offramp benchmark my-model --file texts.txt --batch 1,32 --baselines plain,onnx --json results.json
  offramp benchmark my-model --figure speed.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp benchmark`."""
    arguments.add_model(parser)
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--batch",
        type=arguments.integers,
        default=(1, 8, 32, 64),
        metavar="N",
        help="batch sizes, separated by commas (default: 1,8,32,64)",
    )
    measurement.add_argument(
        "--baselines",
        type=arguments.words,
        metavar="P",
        help="baselines: plain, pipeline, bfloat16, onnx, openvino, originals, optimizer, compile, torch-int8, "
        "torchao, ctranslate2, llama.cpp (default: all that are installed)",
    )
    measurement.add_argument("--rows", type=int, metavar="N", help="number of texts to time (default: all)")
    measurement.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="passes over the texts; the median is reported (default: 3)"
    )
    measurement.add_argument(
        "--no-memory", dest="memory", action="store_false", help="skip memory, which takes a process per entry"
    )
    arguments.add_threads(measurement)
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the results to this JSON file")
    output.add_argument("--figure", metavar="FILE", help="draw the results to this file, .svg or .png")
    output.add_argument("--overwrite", action="store_true", help="replace these files if they exist")
    add_data(parser, "The default is the dev split of the training run.")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark and print its table."""
    from offramp.api.export import benchmark

    echo(str(arguments.call(benchmark, args)))
    return 0
