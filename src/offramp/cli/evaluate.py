"""Measure the quality of every exit and the speed–quality trade-off of every exit policy, in one pass over the data.

OUT gets report.html (a page to read or share), results.json, curve.csv, figures, arrays, and a trace of every exit's
predictions. Policies are replayed on the trace, without further passes. A few points are also timed live against the
plain encoder.
"""

from __future__ import annotations

import argparse
import shlex

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp evaluate my-model --output run  # on the dev rows of its training run
  offramp evaluate my-model --task sst-2 --data-dir GLUE --policy entropy --thresholds 0.1,0.2,0.3 --output run
  offramp evaluate my-model --policy patience --patience 1,2,3 --output run
  offramp evaluate my-model --file texts.txt --output run  # without labels: against the full model
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp evaluate`."""
    arguments.add_model(parser)
    add_data(parser, "The default is the dev split of the training run.")
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="exit policy to evaluate; may be repeated; with a number (entropy:0.2) it is the operating point of the "
        "report (default: all that apply; the operating point is the model's policy, else the cheapest "
        "threshold of the first policy with at most 2 %% changed predictions)",
    )
    exits.add_argument(
        "--thresholds", type=arguments.floats, metavar="T", help="thresholds such as 0.1,0.2,0.3 (default: a fine grid)"
    )
    exits.add_argument(
        "--patience", type=arguments.integers, metavar="N", help="patience values such as 3,4,5,6 (default: all)"
    )
    exits.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="regression: maximum difference that counts as unchanged (default: a tenth of the range)",
    )
    exits.add_argument(
        "--reference",
        metavar="R",
        help="model, or file of texts and labels, to compare predictions with (default: the full model)",
    )
    exits.add_argument(
        "--elue-length",
        type=int,
        default=128,
        metavar="L",
        help="padded length for counting operations as in ELUE (default: 128)",
    )
    exits.add_argument("--no-live", dest="live", action="store_false", help="skip the timing")
    output = parser.add_argument_group("output")
    arguments.add_output(output, required=True, help="folder for the results")
    output.add_argument(
        "--trace",
        metavar="FILE",
        help="trace file: read if it exists, otherwise written (default: trace.safetensors in OUT)",
    )
    output.add_argument(
        "--all-checkpoints",
        action="store_true",
        help="evaluate every checkpoint in MODEL/checkpoints, each into a folder in OUT",
    )
    arguments.add_inference(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate the model and print the tables."""
    from offramp.api.evaluate import evaluate

    result = arguments.call(evaluate, args, command=shlex.join(["offramp", *args.words]))
    if args.all_checkpoints:
        from offramp.report.tables import checkpoints_table

        table = checkpoints_table({name: evaluation.results for name, evaluation in result.items()})
        echo(f"{table}\n\nWrote one folder per checkpoint to {args.output}.", args.output)
        return 0
    echo(f"{result}\n\nWrote {result.folder}; open {result.report} for the report.", args.output)
    return 0
