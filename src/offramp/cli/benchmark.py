"""Measure a model against what people use instead, in one run, on your own texts.

The plain Hugging Face model and its pipeline, bfloat16 where the CPU has it, full-depth ONNX Runtime and OpenVINO in
every precision, a static model of equal cost, and offramp on torch and on every export, each with its own calibrated
policy. All take turns, tokenising included. Quality is the share of answers like the full float32 model's.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import say

EXAMPLES = """\
examples:
  offramp benchmark MODEL                                       (on the dev rows of its training)
  offramp benchmark MODEL --texts texts.txt --batch 1,32 --peers plain,onnx --json results.json
  offramp benchmark MODEL --figure speed.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp benchmark`."""
    arguments.add_model(parser)
    parser.add_argument(
        "--batch", type=arguments.counts, default=(1, 8, 32, 64), metavar="N", help="batch sizes (1,8,32,64)"
    )
    parser.add_argument(
        "--peers",
        type=arguments.words,
        metavar="P",
        help="against whom: plain, pipeline, bfloat16, onnx, openvino, originals (all that are installed)",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="texts that seconds are measured on, spread over the file (all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="passes over the texts; the median counts (3)"
    )
    parser.add_argument(
        "--no-memory", dest="memory", action="store_false", help="do not measure memory (a process per contestant)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there")
    parser.add_argument("--figure", metavar="FILE", help="draw it there, .svg or .png")
    parser.add_argument("--overwrite", action="store_true", help="replace these files if they exist")
    add_data(parser, "The split is dev.")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table."""
    from offramp.api.export import benchmark

    say(str(arguments.call(benchmark, args)))
    return 0
