"""The ELUE tasks, in the layout of the official download; named `elue-…` because three of them are also in GLUE."""

from __future__ import annotations

from offramp.data.glue import SENTENCES, STRINGS
from offramp.data.task import Layout, Task

__all__ = ["ELUE"]

NLI = ("premise", "hypothesis")


def _single(name: str, folder: str) -> Task:
    layout = {"train": Layout("train.tsv", 0, label=1), "dev": Layout("dev.tsv", 0, label=1)}
    return Task(f"elue-{name}", ("acc",), folder=folder, splits=layout | {"test": Layout("test.tsv", 1)})


def _pair(
    name: str, folder: str, metrics: tuple[str, ...], labels: tuple[str, ...] | None, inputs: tuple[str, str]
) -> Task:
    layout = {split: Layout(f"{split}.tsv", 0, 1, -1, columns=3) for split in ("train", "dev")}
    layout |= {"test": Layout("test.tsv", 1, 2)}
    return Task(f"elue-{name}", metrics, labels, folder, layout, inputs=inputs)


ELUE = (
    _single("sst-2", "SST-2"),
    _single("imdb", "IMDb"),
    Task(
        "elue-mrpc",
        ("acc_and_f1", "acc", "f1"),
        folder="MRPC",
        splits={
            "train": Layout("train.tsv", 3, 4, 0),
            "dev": Layout("dev.tsv", 3, 4, 0),
            "test": Layout("test.tsv", 3, 4),
        },
        inputs=STRINGS,
    ),
    _pair("sts-b", "STS-B", ("corr", "pearson", "spearmanr"), None, SENTENCES),
    _pair("snli", "SNLI", ("acc",), ("0", "1", "2"), NLI),
    _pair("scitail", "SciTail", ("acc",), ("0", "1"), NLI),
)
