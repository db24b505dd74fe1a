"""Choose the cheapest threshold that keeps a guarantee, with a statistical guarantee, and write it into the model.

The guarantee is about answers that differ from the full model's (no labels needed: any text file serves), or about
accuracy lost against labels. The rows are those that training set aside; other rows may be named, but none that were
trained on. Ends with 1, and changes nothing, if the guarantee cannot be kept.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.streams import say
from offramp.runtimes import RUNTIMES

EXAMPLES = """\
examples:
  offramp calibrate MODEL --risk 0.02 --confidence 0.9
  offramp calibrate MODEL --risk-type accuracy --risk 0.01
  offramp calibrate MODEL --file tickets.txt --risk 0.01              (no labels)
  offramp calibrate MODEL --speedup 2                                 (no guarantee: the best quality at that speed)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp calibrate`."""
    arguments.add_model(parser)
    guarantee = parser.add_argument_group("the guarantee")
    guarantee.add_argument("--risk", type=float, metavar="R", help="at most this share (0.01)")
    guarantee.add_argument("--confidence", type=float, metavar="C", help="how surely (0.95)")
    guarantee.add_argument(
        "--risk-type",
        choices=["disagreement", "accuracy"],
        help="of what: answers unlike the full model's, or accuracy lost against labels (disagreement)",
    )
    guarantee.add_argument(
        "--test",
        choices=["auto", "binomial", "betting", "hoeffding-bentkus"],
        help="auto, the default: binomial for disagreement, betting for accuracy; binomial on accuracy counts losses "
        "only, not gains, and is the cautious choice",
    )
    guarantee.add_argument("--tolerance", type=float, metavar="X", help="regression: how far off a value may be")
    guarantee.add_argument(
        "--reference",
        metavar="R",
        help="a model, or a file of texts and labels, whose answers are to be kept (its own)",
    )
    guarantee.add_argument(
        "--speedup", type=float, metavar="S", help="no guarantee: the best quality at S × fewer layers"
    )
    leaving = parser.add_argument_group("leaving")
    leaving.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="which policy's number is chosen (the model's own, else entropy); several are searched on half the rows; "
        "auto: entropy or risk, whichever is better there",
    )
    leaving.add_argument("--per-exit", action="store_true", help="a threshold of its own for every exit, likewise")
    leaving.add_argument("--temperature", action="store_true", help="first fit a temperature per exit on a quarter")
    add_data(parser, "The rows are those that training set aside.")
    parser.add_argument("--trace", metavar="FILE", help="a trace of those rows to read, or to record there")
    arguments.add_machine(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate and say what holds."""
    from offramp.api.calibrate import calibrate

    exported = RUNTIMES[args.backend].runs_graphs
    kept = (f"{args.model}/{args.backend}", "offramp.json") if exported else (args.model, "config.json")
    place = f"The policy is for {'/'.join(kept)}, the evidence for {kept[0]}/calibration.json."
    # who cannot be told gets no other model
    result = arguments.call(calibrate, args, announce=lambda sentence: say(f"{sentence}\n{place}"))
    if not result:
        say(f"{result.sentence}\n{args.model} is unchanged.")
        return 1
    return 0
