"""The curves of several runs of `offramp evaluate` in one figure and one table.

All runs are about the same rows. The first one is what the others are measured against. Cost is counted in layers where
a layer costs the same in all of them, else in operations. With --elue-reference also
ELUE's score: the mean height of a run's points above a reference curve, operations counted as ELUE counts them.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.streams import say

EXAMPLES = """\
examples:
  offramp compare deebert-run romebert-run --output comparison
  offramp compare RUN RUN RUN --names DeeBERT,DeeBERT+SD,RomeBERT --policy entropy
  offramp compare RUN RUN --elue-reference static-2 static-3 static-4 static-6
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp compare`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders that `offramp evaluate` wrote")
    parser.add_argument(
        "--names", type=arguments.words, metavar="A,B", help="how the runs are called (their folders' names)"
    )
    parser.add_argument("--policy", default="entropy", metavar="P", help="whose curves; layer: the exits (entropy)")
    parser.add_argument(
        "--elue-reference",
        nargs="+",
        default=(),
        metavar="REF",
        help="a CSV file with the columns flops and score, or static runs, a point each",
    )
    parser.add_argument("--clamp", action="store_true", help="beyond the reference curve, take its nearest end")
    arguments.add_output(parser, required=False, what="a folder for the figure and comparison.json")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from offramp.api.evaluate import compare

    result = arguments.call(compare, args)
    say(f"{result}\n\nWrote {args.output}." if args.output is not None else str(result), args.output)
    return 0
