"""The curves of several runs of `offramp evaluate` in one figure and one table.

All runs are about the same rows. The first one is what the others are measured against. Cost is counted in layers where
a layer costs the same in all of them, else in operations. With --elue-reference also
ELUE's score: the mean height of a run's points above a reference curve, operations counted as ELUE counts them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders that `offramp evaluate` wrote")
    parser.add_argument("--names", metavar="A,B", help="how the runs are called (their folders' names)")
    parser.add_argument("--policy", default="entropy", metavar="P", help="whose curves; layer: the exits (entropy)")
    parser.add_argument(
        "--elue-reference",
        nargs="+",
        type=Path,
        default=[],
        metavar="REF",
        help="a CSV file with the columns flops and score, or static runs, a point each",
    )
    parser.add_argument("--clamp", action="store_true", help="beyond the reference curve, take its nearest end")
    arguments.add_output(parser, required=False, what="a folder for the figure and comparison.json")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from offramp.evaluation.compare import compare, draw

    names = args.names.split(",") if args.names else None
    compared, results = compare(args.runs, names, args.policy, reference=args.elue_reference, clamp=args.clamp)
    told = tables(compared, args.policy)
    if args.output is not None:
        from offramp.files.ours import COMPARISON
        from offramp.files.writing import staged_folder

        with staged_folder(args.output, args.overwrite, COMPARISON, "a comparison") as folder:
            draw(folder, compared, results, args.policy)
            (folder / "comparison.json").write_text(as_json(compared, args.policy), encoding="utf-8")
        told += f"\n\nWrote {args.output}."
    say(told, args.output)
    return 0


def tables(compared: Any, policy: str) -> str:
    """Score at equal cost, cost at equal score, area; ELUE's score where asked for."""
    from offramp.evaluation.compare import COSTS, tracks
    from offramp.report.tables import aligned, percent

    unit = compared.unit

    def cost(value: float | None) -> str:
        return "–" if value is None else f"{value:,.2f}"

    names = [curve.name for curve in compared.curves]
    costs = [f"{share * compared.full:,.1f} {unit}" for share in COSTS]
    first = aligned(
        [f"{compared.metric} by {policy}", *costs],
        ([name, *map(percent, row)] for name, row in zip(names, compared.at_cost(), strict=True)),
    )
    goals = [f"{names[0]} {less}" for less in ("− 2 points", "− 1", "− 0.5", "at its best")]
    second = aligned(
        [f"{unit} that reach", *goals],
        ([name, *map(cost, row)] for name, row in zip(names, compared.at_score(), strict=True)),
    )
    head = ["", f"mean height above {names[0]}, points"]
    rows = [[name, f"{100 * area:+.2f}"] for name, area in zip(names, compared.areas(), strict=True)]
    if compared.elue is not None:
        head += ["ELUE score, points", "parameters"]
        for row in rows:
            score = compared.elue[row[0]]
            row += ["–" if score is None else f"{100 * score:+.2f}", tracks(compared)[row[0]]]
    return "\n\n".join([first, second, aligned(head, rows)])


def as_json(compared: Any, policy: str) -> str:
    """The same numbers for machines."""
    import json

    from offramp.evaluation.compare import COSTS, tracks

    numbers = {
        "data": compared.data,
        "metric": compared.metric,
        "policy": policy,
        "runs": [curve.name for curve in compared.curves],
        "unit": compared.unit,
        "costs": [share * compared.full for share in COSTS],
        "score_at_cost": compared.at_cost(),
        "cost_at_score": compared.at_score(),
        "area": compared.areas(),
        "elue_score": compared.elue,
        "track": tracks(compared),
    }
    return json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
