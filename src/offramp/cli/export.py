"""Export a model to ONNX Runtime or OpenVINO, into the model's folder.

The export has one graph per exit: the layers since the previous exit, and the exit head. Its predictions are compared
with torch's on the texts of --file, else on the dev rows of the training run. By default it is quantized to int8, with
the fastest method on this machine that preserves at least 99 % of the predictions of every exit; scales come from
training rows. Rows that training held out remain unused, so calibrate the export afterwards.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import echo
from offramp.runtimes import graph_runtimes

EXAMPLES = """\
examples:
  offramp export my-model --backend onnx
  offramp export my-model --backend onnx --int8 token --exits 2,4 --overwrite
  offramp export my-model --backend openvino --file texts.txt
  offramp predict my-model texts.txt --backend onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp export`."""
    arguments.add_model(parser)
    arguments.add_backend(parser, [runtime.name for runtime in graph_runtimes()], "onnx")
    parser.add_argument(
        "--int8",
        choices=["auto", "static", "mixed", "token", "dynamic", "none"],
        help="activation scales: static (fixed, from texts), token (one per token), mixed (static, but per token "
        "inside the feed-forward blocks), dynamic (one per batch, so that predictions depend on the other rows), none "
        "(float32) (default: the fastest of static and mixed that preserves predictions; token without texts)",
    )
    parser.add_argument(
        "--no-smooth", dest="smooth", action="store_false", help="do not move activation outliers into the weights"
    )
    parser.add_argument(
        "--exits", type=arguments.layers, metavar="LAYERS", help="exits to keep, such as 4,8,12 (default: all)"
    )
    parser.add_argument(
        "--one-file",
        nargs="?",
        const=True,
        metavar="P",
        help="also write model.onnx, a single graph with early exits for any ONNX Runtime, from the existing export if "
        "there is one; P is entropy:0.3, confidence:0.9 or risk:0.02 (default: the calibrated policy)",
    )
    parser.add_argument("--force", action="store_true", help="write the export even if its predictions differ")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing export")
    arguments.add_threads(parser)
    add_data(parser, "The default is the rows of the training run.")


def run(args: argparse.Namespace) -> int:
    """Export the model and print what was written."""
    from offramp.api.export import export

    result = arguments.call(export, args)
    if result.one_file is not None:
        echo(f"Wrote {result.one_file} with the exit policy {result.policy.describe()}.")
        return 0
    echo(
        f"Wrote {result.folder} in {result.precision}. Next, calibrate it: "
        f"offramp calibrate {args.model} --backend {args.backend}"
    )
    return 0
