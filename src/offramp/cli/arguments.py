"""Options that several commands share, with one name and one meaning."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_model", "add_output", "add_policy", "numbers"]


Options = argparse.ArgumentParser | argparse._ArgumentGroup


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command reads."""
    parser.add_argument("model", metavar="MODEL", help="a model folder, or a name on the Hub")


def add_policy(parser: Options, default: str) -> None:
    """Who may leave."""
    parser.add_argument(
        "--policy",
        metavar="P",
        help="who may leave: entropy:0.2, confidence:0.9, margin:0.8, patience:6, patience:3:0.1 (regression), "
        f"patience-confidence:2:0.3, vote:3, learned:0.1, layer:6, never ({default})",
    )


def add_output(parser: Options, *, required: bool, what: str) -> None:
    """Where a result goes."""
    parser.add_argument("--output", "-o", metavar="OUT", type=Path, required=required, help=what)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def numbers(written: str) -> float | tuple[float, ...]:
    """One number, or several separated by commas."""
    if "," in written:
        return tuple(float(one) for one in written.split(","))
    return float(written)
