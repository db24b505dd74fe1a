"""Choose the exits that make an exported model fastest within a risk limit, and export the model with them.

Every segment of the model is timed at several batch sizes. Sets of up to four early exits are compared by predicted
time on a quarter of the rows that training held out; the other rows test the best set, which gives the guarantee. If
the guarantee cannot be satisfied, the export is not changed and the exit code is 1.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.guarantee import add_guarantee_options
from offramp.cli.streams import echo
from offramp.runtimes import graph_runtimes

EXAMPLES = """\
examples:
  offramp tune my-model --backend onnx --risk 0.02 --confidence 0.9
  offramp tune my-model --backend onnx --risk 0.01 --batch 1  # for requests with single texts
  offramp tune my-model --backend openvino --risk-type accuracy --risk 0.01
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp tune`."""
    arguments.add_model(parser)
    guarantee = parser.add_argument_group("guarantee")
    guarantee.add_argument(
        "--risk",
        type=float,
        default=0.02,
        metavar="R",
        help="maximum fraction of changed predictions, or of accuracy lost (default: 0.02)",
    )
    guarantee.add_argument("--confidence", type=float, default=0.9, metavar="C", help="confidence level (default: 0.9)")
    guarantee.add_argument(
        "--risk-type",
        choices=["disagreement", "changed", "lost", "accuracy"],
        default="disagreement",
        help="what the risk limits: predictions that differ from the full model's (rankings: missing top documents), "
        "queries whose top documents changed (rankings), entities that are lost (token classification), or accuracy "
        "lost on labelled rows (default: disagreement)",
    )
    guarantee.add_argument(
        "--tolerance", type=float, metavar="T", help="regression: maximum difference that counts as unchanged"
    )
    add_guarantee_options(guarantee, "tests.jsonl in MODEL")
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--policy",
        default="auto",
        metavar="P",
        help="exit policy: entropy, confidence, margin or risk; auto tries entropy and risk (default: auto)",
    )
    inference = parser.add_argument_group("inference")
    arguments.add_backend(inference, [runtime.name for runtime in graph_runtimes()], "onnx")
    inference.add_argument(
        "--batch", type=int, default=32, metavar="N", help="batch size to optimize for (default: 32)"
    )
    arguments.add_threads(inference)
    add_data(parser, "The default is the rows that training held out.")


def run(args: argparse.Namespace) -> int:
    """Tune the export and print the result."""
    from offramp.api.export import tune

    result = arguments.call(tune, args)
    echo(str(result))
    return 0 if result else 1
