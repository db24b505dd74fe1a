"""Choose which exits an export keeps, for the best speed on this machine within a risk, and export it cut there.

Every segment is timed at several numbers of rows; sets of up to four early exits are priced in these seconds on a
quarter of the rows that training set aside; the best one is tested on the others, which gives the guarantee. Ends with 1,
and changes nothing, if the guarantee cannot be kept.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import say
from offramp.runtimes import graph_runtimes

EXAMPLES = """\
examples:
  offramp tune MODEL --backend onnx --risk 0.02 --confidence 0.9
  offramp tune MODEL --backend onnx --risk 0.01 --batch 1             (to be served one by one)
  offramp tune MODEL --backend openvino --risk-type accuracy --risk 0.01
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp tune`."""
    arguments.add_model(parser)
    parser.add_argument(
        "--backend", choices=[one.name for one in graph_runtimes()], default="onnx", help="what shall run it (onnx)"
    )
    parser.add_argument("--risk", type=float, default=0.01, metavar="R", help="at most this share (0.01)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="how surely (0.95)")
    parser.add_argument(
        "--risk-type", choices=["disagreement", "accuracy"], default="disagreement", help="of what (disagreement)"
    )
    parser.add_argument(
        "--policy",
        default="auto",
        metavar="P",
        help="entropy, confidence, margin or risk (the best of entropy and risk)",
    )
    parser.add_argument("--tolerance", type=float, metavar="T", help="of a regression: how far off an answer may be")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="rows that are served together (32)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    add_data(parser, "The rows are those that training set aside.")


def run(args: argparse.Namespace) -> int:
    """Tune and say what was chosen."""
    from offramp.api.export import tune

    result = arguments.call(tune, args)
    say(str(result))
    return 0 if result else 1
