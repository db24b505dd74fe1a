"""Compare several evaluations: speed–quality curves in one figure and one table.

Each RUN is a folder written by `offramp evaluate`, all on the same rows. The first is the reference for the others.
Cost is counted in layers if a layer costs the same in all runs, else in floating-point operations. --elue-reference
adds the ELUE score: the mean height of a run's points above a reference curve, with operations counted as in ELUE.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp compare deebert-run romebert-run --output comparison
  offramp compare run-1 run-2 run-3 --names DeeBERT,DeeBERT+SD,RomeBERT --policy entropy
  offramp compare run-1 run-2 --elue-reference static-2 static-3 static-4 --clamp
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp compare`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder written by offramp evaluate")
    parser.add_argument(
        "--names", type=arguments.words, metavar="A,B", help="names of the runs (default: their folder names)"
    )
    parser.add_argument(
        "--policy",
        default="entropy",
        metavar="P",
        help="exit policy to compare; layer compares the single exits (default: entropy)",
    )
    parser.add_argument(
        "--elue-reference",
        nargs="+",
        default=(),
        metavar="REF",
        help="reference curve: a CSV file with the columns flops and score, or runs of static models, one per point",
    )
    parser.add_argument(
        "--clamp", action="store_true", help="use the nearest end of the reference curve for points beyond it"
    )
    arguments.add_output(parser, required=False, help="folder for the figure and comparison.json")


def run(args: argparse.Namespace) -> int:
    """Compare the runs and print the tables."""
    from offramp.api.evaluate import compare

    result = arguments.call(compare, args)
    echo(f"{result}\n\nWrote {args.output}." if args.output is not None else str(result), args.output)
    return 0
