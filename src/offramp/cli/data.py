"""Options that choose a command's rows and describe how files are read."""

from __future__ import annotations

import argparse

from offramp.data.source import FORMATS

__all__ = ["add_data", "add_reading"]

OPTIONS = {
    "task": ("T", "benchmark task, such as sst-2, elue-mrpc or squad (default: the task of the training run)"),
    "data-dir": ("DIR", "folder with the task's official download"),
    "dataset": ("NAME", "dataset: a name on the Hugging Face Hub or a folder"),
    "dataset-config": ("NAME", "configuration of the dataset"),
    "split": ("S", "split of the task or dataset"),
    "text-column": ("NAME", "your own data: column with the text (default: as in training, else text or sentence)"),
    "pair-column": ("NAME", "your own data: column with the second text of each pair"),
    "label-column": ("NAME", "your own data: column with the label (default: as in training, else label)"),
    "metric": ("M", "your own data: main metric"),
}
FILE = "file or folder of texts instead of a split: text, TSV, CSV, JSON, Parquet or CoNLL, with or without labels"


def add_data(parser: argparse.ArgumentParser, rows: str) -> None:
    """Add the options that choose the rows; `rows` is a sentence about the default."""
    group = parser.add_argument_group("data", f"{rows} Data options that are not set are those of the training run.")
    group.add_argument("--file", "--texts", metavar="FILE", dest="texts", help=FILE)
    for name, (metavar, help) in OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=help)
    add_reading(group)


def add_reading(group: argparse._ArgumentGroup) -> None:
    """Add the options that describe the format of a file."""
    group.add_argument(
        "--input-format", choices=list(FORMATS), help="format of the file (default: from its extension, else text)"
    )
    group.add_argument(
        "--no-header",
        dest="header",
        action="store_false",
        help="TSV or CSV without a header line; columns are called 1, 2, …",
    )
