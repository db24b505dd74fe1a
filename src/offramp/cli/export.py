"""Write a model's layers and exits as graphs for ONNX Runtime or OpenVINO, into the model's own folder.

There is one graph per exit: the layers since the exit before, and the exit's head. Every exit's answers are then
compared with torch's on real texts: on those of --file, else on the dev rows of its training. int8 is chosen by what
is quickest here and keeps at least 99 % of every exit's answers; its scales come from rows that were trained on. Those
that training set aside are still fresh to calibrate on: `offramp calibrate MODEL --backend onnx`.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import say
from offramp.runtimes import graph_runtimes

EXAMPLES = """\
examples:
  offramp export MODEL --backend onnx
  offramp export MODEL --backend onnx --int8 token --exits 4,8,12 --overwrite
  offramp export MODEL --backend openvino --file texts.txt
  offramp predict MODEL texts.txt --backend onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp export`."""
    arguments.add_model(parser)
    parser.add_argument(
        "--backend", choices=[one.name for one in graph_runtimes()], default="onnx", help="what shall run it (onnx)"
    )
    parser.add_argument(
        "--int8",
        choices=["static", "token", "dynamic", "none"],
        help="scales of what goes into products: fixed, from texts; one per token; one per batch, so that a row's "
        "answer depends on its neighbours; none: float32 (the quickest of static and token that keeps the answers)",
    )
    parser.add_argument(
        "--no-smooth", dest="smooth", action="store_false", help="leave outliers of activations where they are"
    )
    parser.add_argument("--exits", type=arguments.layers, metavar="L", help="where to cut: 4,8,12 (at every exit)")
    parser.add_argument(
        "--one-file",
        nargs="?",
        const=True,
        metavar="P",
        help="also write model.onnx, one graph that leaves early by itself in any ONNX Runtime, of the export that is "
        "there; P such as entropy:0.3 or confidence:0.9 (the calibrated policy)",
    )
    parser.add_argument("--force", action="store_true", help="keep it even if it answers differently")
    parser.add_argument("--overwrite", action="store_true", help="replace an export that is there")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    add_data(parser, "The rows are those of its training.")


def run(args: argparse.Namespace) -> int:
    """Export and say how it answers."""
    from offramp.api.export import export

    result = arguments.call(export, args)
    if result.one_file is not None:
        say(f"Wrote {result.one_file}, which exits by {result.policy.name}; its metadata tell {result.policy}.")
    say(
        f"Wrote {result.folder} in {result.precision}; calibrate it: "
        f"offramp calibrate {args.model} --backend {args.backend}"
    )
    return 0
