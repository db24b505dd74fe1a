"""Choose the fastest exit threshold that satisfies a statistical guarantee, and save it in the model.

The guarantee limits either the predictions that differ from the full model's (no labels needed) or the accuracy lost.
It also limits the changed predictions of every class.

By default the calibration rows are those that training held out. Other rows must not have been trained on. If no
threshold satisfies the guarantee, the policy is not changed and the exit code is 1.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_data
from offramp.cli.guarantee import add_guarantee_options
from offramp.cli.streams import echo
from offramp.runtimes import RUNTIMES

EXAMPLES = """\
examples:
  offramp calibrate my-model --risk 0.02 --confidence 0.9
  offramp calibrate my-model --risk-type accuracy --risk 0.01
  offramp calibrate my-model --file texts.txt --risk 0.01  # your own texts, without labels
  offramp calibrate my-model --keep ABUSE --recall 0.99  # 99 % of the texts with this class keep it
  offramp calibrate my-model --speedup 2  # no guarantee: best quality at that speed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp calibrate`."""
    arguments.add_model(parser)
    guarantee = parser.add_argument_group("guarantee")
    guarantee.add_argument(
        "--risk",
        type=float,
        metavar="R",
        help="maximum fraction of changed predictions, or of accuracy lost (default: 0.02)",
    )
    guarantee.add_argument("--confidence", type=float, metavar="C", help="confidence level (default: 0.9)")
    guarantee.add_argument(
        "--risk-type",
        choices=["disagreement", "changed", "lost", "accuracy"],
        help="what the risk limits: predictions that differ from the full model's (rankings: missing top documents), "
        "queries whose top documents changed (rankings), entities that are lost (token classification), or accuracy "
        "lost on labelled rows (default: disagreement)",
    )
    guarantee.add_argument(
        "--test",
        choices=["auto", "binomial", "betting", "hoeffding-bentkus"],
        help="statistical test; auto is binomial for disagreement, betting for accuracy and for groups; binomial for "
        "accuracy ignores gains, which is conservative (default: auto)",
    )
    guarantee.add_argument(
        "--tolerance", type=float, metavar="X", help="regression: maximum difference that counts as unchanged"
    )
    guarantee.add_argument(
        "--reference",
        metavar="R",
        help="model, or file of texts and labels, to compare predictions with (default: the full model)",
    )
    add_guarantee_options(guarantee, "tests.jsonl in MODEL")
    guarantee.add_argument(
        "--speedup", type=float, metavar="S", help="no guarantee: best quality with S times fewer layers"
    )
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="exit policy to calibrate; repeat the option to choose among several on a quarter of the rows; auto "
        "chooses between entropy and risk (default: the model's policy, else entropy)",
    )
    exits.add_argument(
        "--per-exit", action="store_true", help="choose a separate threshold per exit on a quarter of the rows"
    )
    exits.add_argument(
        "--temperature",
        action="store_true",
        help="first fit a temperature per exit on a quarter of the rows; needs labels",
    )
    add_data(parser, "The default is the rows that training held out.")
    parser.add_argument(
        "--trace", metavar="FILE", help="cache of the outputs of all exits: read if it exists, otherwise written"
    )
    arguments.add_inference(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate the model and print the guarantee."""
    from offramp.api.calibrate import calibrate
    from offramp.report.class_table import class_table

    result = arguments.call(calibrate, args, announce=echo)  # if this cannot be printed, the model is not changed
    if not result:
        if not result.withdrawn:  # otherwise it is printed already
            echo(f"{result.sentence}\n{args.model} is unchanged.")
        return 1
    if table := class_table(result.evidence.get("classes", ()), result.evidence.get("limits", ())):
        echo(f"\n{table}\n")
    backend = result.evidence["machine"]["backend"]
    is_export = RUNTIMES[backend].runs_graphs
    folder, config = (f"{args.model}/{backend}", "offramp.json") if is_export else (args.model, "config.json")
    echo(f"Saved the policy in {folder}/{config} and the evidence in {folder}/calibration.json.", folder)
    return 0
