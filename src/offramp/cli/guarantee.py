"""Options of a guarantee that `adapt`, `calibrate` and `tune` share."""

from __future__ import annotations

import argparse

from offramp.cli.arguments import floats

__all__ = ["COUNT_TEXTS", "add_guarantee_options"]

COUNT_TEXTS = "rows: count rows as they come; texts: count each unique text once"
COUNT = (
    f"{COUNT_TEXTS} (default: rows, but texts for rows that training held out); set rows explicitly to accept rows "
    "whose texts also occur in the training data"
)


def add_guarantee_options(group: argparse._ArgumentGroup, ledger: str, count: str = COUNT) -> None:
    """Add limits per class and for a decision, and how rows are counted; `ledger` is where tests are recorded."""
    group.add_argument(
        "--class-risk",
        type=class_risk,
        default="auto",
        metavar="R",
        help="maximum fraction of changed predictions of every class; none: no limit (default: 0.1, or --risk if that "
        "is larger, for models with classes)",
    )
    group.add_argument(
        "--bands",
        type=floats,
        default=(),
        metavar="V",
        help="regression: boundaries of bands of values that count as classes, such as 3 (below 3; 3 and above) or 1,3",
    )
    group.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="LABEL",
        help="class whose predictions are flagged, with --recall or --precision; may be repeated",
    )
    group.add_argument(
        "--flag", metavar="F", help='scores that are flagged, instead of --keep: "P(ABUSE) >= 0.8", "score >= 3"'
    )
    group.add_argument(
        "--recall", type=float, metavar="R", help="minimum fraction of the model's flagged texts that stay flagged"
    )
    group.add_argument(
        "--precision",
        type=float,
        metavar="P",
        help="minimum fraction of the texts flagged after early exits that the model flags too",
    )
    group.add_argument(
        "--on-average",
        action="store_true",
        help="bound the risk on average over calibrations, without a confidence level (conformal risk control)",
    )
    group.add_argument(
        "--count",
        choices=["rows", "texts"],
        help=count,
    )
    group.add_argument(
        "--group-column",
        metavar="NAME",
        help="column with the document, customer or conversation of a text: groups are tested instead of rows",
    )
    group.add_argument(
        "--ledger", metavar="FILE", help=f"record of the rows that tested a guarantee (default: {ledger})"
    )


def class_risk(text: str) -> float | str:
    """Parse a fraction, or the words `none` and `auto`."""
    return text.lower() if text.lower() in ("none", "auto") else float(text)
