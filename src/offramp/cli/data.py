"""The options that say which rows a command is about, the same for every command that has some."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from offramp.data.reading import FORMATS

if TYPE_CHECKING:
    from offramp.data.rows import DataOptions

__all__ = ["add_data", "add_reading", "given"]

OPTIONS = {
    "task": ("T", "a task such as sst-2, elue-mrpc or squad (the one the model was trained on)"),
    "data-dir": ("DIR", "the folder of its official download"),
    "dataset": ("NAME", "a data set on the Hub or a folder of one"),
    "dataset-config": ("NAME", "which configuration of the data set"),
    "file": ("FILE", "a file in place of the split (text, TSV, CSV, JSON lines, Parquet; labels if it has some)"),
    "split": ("S", "which split"),
    "text-column": ("NAME", "own data: the text (a column called text or sentence)"),
    "pair-column": ("NAME", "own data: the text's partner"),
    "label-column": ("NAME", "own data: the label (a column called label)"),
    "metric": ("M", "own data: the metric that counts"),
}


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    """Where the rows are; what is not given is what the model was trained with."""
    group = parser.add_argument_group("data", f"What is not given is as the model was trained. {split}")
    for name, (metavar, text) in OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)
    add_reading(group)


def add_reading(group: argparse._ArgumentGroup) -> None:
    """How a file is read, the same wherever one is."""
    group.add_argument("--input-format", choices=list(FORMATS), help="how FILE is read (by its ending, else text)")
    group.add_argument("--no-header", action="store_true", help="TSV or CSV without a header; columns are 1, 2, …")


def given(args: argparse.Namespace) -> DataOptions:
    """The options as a whole."""
    from offramp.data.rows import DataOptions

    names = [*(name.replace("-", "_") for name in OPTIONS), "input_format", "no_header"]
    return DataOptions(**{name: getattr(args, name) for name in names})
