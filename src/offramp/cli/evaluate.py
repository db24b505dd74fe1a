"""What every exit is worth and what every policy costs, from one pass over the data.

OUT gets results.json, curve.csv, plain arrays, figures, the trace of all exits' answers, and report.html, one page to
read or to show. Curves need no further pass: a policy is replayed on the trace. A few points are run live, against the
plain encoder, for their seconds.
"""

from __future__ import annotations

import argparse
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from offramp.cli import arguments
from offramp.cli.data import add_data, given
from offramp.cli.streams import say
from offramp.errors import BadInput, BadValue, missing_library
from offramp.files.writing import check_free, writing

logger = logging.getLogger("offramp")

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
    leaving.add_argument("--thresholds", type=numbers, metavar="T", help="instead of a fine grid: 0.1,0.2,0.3")
    leaving.add_argument("--patience", type=counts, metavar="N", help="instead of all: 3,4,5,6")
    leaving.add_argument(
        "--tolerance", type=float, metavar="X", help="regression: values so close agree (a tenth of the range)"
    )
    leaving.add_argument(
        "--elue-length", type=int, default=128, metavar="L", help="tokens that ELUE's count pads to (128)"
    )
    leaving.add_argument(
        "--reference", metavar="R", help="a model, or a file of texts and labels, to compare answers with (its own)"
    )
    leaving.add_argument("--no-live", action="store_true", help="measure no seconds")
    result = parser.add_argument_group("writing")
    arguments.add_output(result, required=True, what="the folder for the results")
    result.add_argument("--trace", type=Path, metavar="FILE", help="a trace to read, or to record if it is not there")
    result.add_argument(
        "--all-checkpoints", action="store_true", help="every checkpoint in MODEL/checkpoints, each in a folder of OUT"
    )
    arguments.add_machine(parser)


def numbers(written: str) -> tuple[float, ...]:
    """Numbers between commas."""
    return tuple(float(one) for one in written.split(","))


def counts(written: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(one) for one in written.split(","))


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the tables."""
    try:
        from offramp.evaluation.evaluate import EvaluationOptions
    except ImportError as err:
        raise missing_library("Evaluating", err) from err
    options = EvaluationOptions(
        tuple(args.policy),
        args.thresholds,
        args.patience,
        args.tolerance,
        args.elue_length,
        not args.no_live,
        args.reference,
    )
    if args.all_checkpoints:
        return _all_checkpoints(args, options)
    results = _evaluate(args, args.model, args.output, options)
    say(f"{summary(results)}\n\nWrote {args.output}; look at {args.output / 'report.html'}.", args.output)
    return 0


def _evaluate(args: argparse.Namespace, model: str, output: Path, options: Any) -> dict[str, Any]:
    from offramp.data.rows import rows_for
    from offramp.evaluation.evaluate import evaluate
    from offramp.training.holdout import seen_in_training

    check_free(output, args.overwrite)
    runner = arguments.load(args, model)
    data = rows_for(model, runner.config, given(args), "dev", run=Path(args.model))
    seen = seen_in_training(Path(args.model), data.rows.texts)
    told = f"{seen:,} of {len(data.rows):,} rows were trained on"
    if seen:
        data = replace(data, name=f"{data.name} ({told})")  # in results.json and in the report
    command = shlex.join(["offramp", *args.given])
    results = evaluate(runner, data, output, options, trace_file=args.trace, overwrite=args.overwrite, command=command)
    if seen:
        logger.warning("%s: what it scores on them says nothing about others.", told)
    return results


def _all_checkpoints(args: argparse.Namespace, options: Any) -> int:
    """One run per checkpoint of a training, and a table of all their exits."""
    from offramp.report.tables import checkpoints_table
    from offramp.training.folder import checkpoints

    saved = checkpoints(Path(args.model))
    if not saved:
        raise BadInput(f"{args.model} has no checkpoints; train with --keep-checkpoints to evaluate them.")
    if args.trace is not None:
        raise BadValue("A trace is of one model; leave --trace out with --all-checkpoints.")
    if not args.output.exists():
        check_free(args.output, args.overwrite)
    with writing(args.output):
        args.output.mkdir(exist_ok=True)
    results = {}
    for name, folder in saved.items():
        results[name] = _evaluate(args, str(folder), args.output / name, options)
    say(f"{checkpoints_table(results)}\n\nWrote a folder for each in {args.output}.", args.output)
    return 0


def summary(results: dict[str, Any]) -> str:
    """The tables, and what the chosen point gives."""
    from offramp.report.tables import (
        exits_table,
        headline,
        live_table,
        policies_table,
        promise_and_sample,
        questions_table,
        width_table,
    )

    parts = [
        exits_table(results),
        *filter(None, [width_table(results), questions_table(results)]),
        "times fewer layers than the full model, by answers that may differ from its:",
    ]
    parts += [policies_table(results), headline(results)]
    if promise := promise_and_sample(results):
        parts.append(promise)
    if results.get("live"):
        parts.append(live_table(results))
    return "\n\n".join(parts)
