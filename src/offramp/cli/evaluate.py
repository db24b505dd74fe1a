"""What every exit is worth and what every policy costs, from one pass over the data.

OUT gets results.json, curve.csv, plain arrays, figures, the trace of all exits' answers, and report.html, one page to
read or to show. Curves need no further pass: a policy is replayed on the trace. A few points are run live, against the
plain encoder, for their seconds.
"""

from __future__ import annotations

import argparse
import shlex

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import say

EXAMPLES = """\
examples:
  offramp evaluate MODEL --output RUN                                (on the dev rows of its training)
  offramp evaluate MODEL --task sst-2 --data-dir GLUE --policy entropy --thresholds 0.1,0.2,0.3 --output RUN
  offramp evaluate MODEL --task elue-mrpc --data-dir ELUE --policy patience --patience 3,4,5,6 --output RUN
  offramp evaluate MODEL --file texts.txt --output RUN               (no labels: against the full model)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp evaluate`."""
    arguments.add_model(parser)
    add_data(parser, "The split is dev.")
    leaving = parser.add_argument_group("leaving")
    leaving.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="a policy to draw; may be given several times. One with its numbers (entropy:0.2) is the chosen point "
        "(all that fit; the model's own, else of the first one drawn the cheapest with at most 2 %% other answers)",
    )
    leaving.add_argument(
        "--thresholds", type=arguments.several, metavar="T", help="instead of a fine grid: 0.1,0.2,0.3"
    )
    leaving.add_argument("--patience", type=arguments.counts, metavar="N", help="instead of all: 3,4,5,6")
    leaving.add_argument(
        "--tolerance", type=float, metavar="X", help="regression: values so close agree (a tenth of the range)"
    )
    leaving.add_argument(
        "--elue-length", type=int, default=128, metavar="L", help="tokens that ELUE's count pads to (128)"
    )
    leaving.add_argument(
        "--reference", metavar="R", help="a model, or a file of texts and labels, to compare answers with (its own)"
    )
    leaving.add_argument("--no-live", dest="live", action="store_false", help="measure no seconds")
    result = parser.add_argument_group("writing")
    arguments.add_output(result, required=True, what="the folder for the results")
    result.add_argument("--trace", metavar="FILE", help="a trace to read, or to record if it is not there")
    result.add_argument(
        "--all-checkpoints", action="store_true", help="every checkpoint in MODEL/checkpoints, each in a folder of OUT"
    )
    arguments.add_machine(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the tables."""
    from offramp.api.evaluate import evaluate

    result = arguments.call(evaluate, args, command=shlex.join(["offramp", *args.given]))
    if args.all_checkpoints:
        from offramp.report.tables import checkpoints_table

        table = checkpoints_table({name: one.results for name, one in result.items()})
        say(f"{table}\n\nWrote a folder for each in {args.output}.", args.output)
        return 0
    say(f"{result}\n\nWrote {result.folder}; look at {result.report}.", args.output)
    return 0
