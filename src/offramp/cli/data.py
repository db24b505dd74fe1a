"""The options that say which rows a command is about, the same for every command that has some."""

from __future__ import annotations

import argparse

from offramp.data.source import FORMATS

__all__ = ["add_data", "add_reading"]

OPTIONS = {
    "task": ("T", "a task such as sst-2, elue-mrpc or squad (the one the model was trained on)"),
    "data-dir": ("DIR", "the folder of its official download"),
    "dataset": ("NAME", "a data set on the Hub or a folder of one"),
    "dataset-config": ("NAME", "which configuration of the data set"),
    "split": ("S", "which split"),
    "text-column": ("NAME", "your own data: the text (a column called text or sentence)"),
    "pair-column": ("NAME", "your own data: the second text of each pair"),
    "label-column": ("NAME", "your own data: the label (a column called label)"),
    "metric": ("M", "your own data: the main metric"),
}
FILE = "a file instead of the split (text, TSV, CSV, JSON lines, Parquet; labels if it has some)"


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    """Where the rows are; what is not given is what the model was trained with."""
    group = parser.add_argument_group("data", f"What is not given is as the model was trained. {split}")
    group.add_argument("--file", "--texts", metavar="FILE", dest="texts", help=FILE)
    for name, (metavar, text) in OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)
    add_reading(group)


def add_reading(group: argparse._ArgumentGroup) -> None:
    """How a file is read, the same wherever one is."""
    group.add_argument(
        "--input-format", choices=list(FORMATS), help="how FILE is read (default: by its ending, else text)"
    )
    group.add_argument(
        "--no-header", dest="header", action="store_false", help="TSV or CSV without a header; columns are 1, 2, …"
    )
