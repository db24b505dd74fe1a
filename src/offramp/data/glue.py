"""The GLUE tasks, in the layout of the official download."""

from __future__ import annotations

from offramp.data.task import HubDataset, Layout, Task

__all__ = ["GLUE", "SENTENCES", "STRINGS"]

HUB = "nyu-mll/glue"


def _single(name: str, folder: str, metrics: tuple[str, ...]) -> Task:
    return Task(
        name,
        metrics,
        folder=folder,
        splits={
            "train": Layout("train.tsv", 0, label=1),
            "dev": Layout("dev.tsv", 0, label=1),
            "test": Layout("test.tsv", 1),
        },
        hub=HubDataset(HUB, "sst2", "sentence"),
    )


def _pair(name: str, folder: str, config: str, names: tuple[str, str], labels: tuple[str, ...]) -> Task:
    return Task(
        name,
        ("acc",),
        labels,
        folder,
        {
            "train": Layout("train.tsv", 1, 2, -1),
            "dev": Layout("dev.tsv", 1, 2, -1),
            "test": Layout("test.tsv", 1, 2),
        },
        HubDataset(HUB, config, *names),
        inputs=names,
    )


ENTAILMENT = ("entailment", "not_entailment")
SENTENCES = ("sentence1", "sentence2")
STRINGS = ("#1 String", "#2 String")

COLA = Task(
    "cola",
    ("mcc",),
    folder="CoLA",
    splits={
        "train": Layout("train.tsv", 3, label=1, has_header=False),
        "dev": Layout("dev.tsv", 3, label=1, has_header=False),
        "test": Layout("test.tsv", 1),
    },
    hub=HubDataset(HUB, "cola", "sentence"),
)
MRPC = Task(
    "mrpc",
    ("acc_and_f1", "acc", "f1"),
    folder="MRPC",
    splits={
        "train": Layout("train.tsv", 3, 4, 0),
        "dev": Layout("dev.tsv", 3, 4, 0),
        "test": Layout("test.tsv", 3, 4),
    },
    hub=HubDataset(HUB, "mrpc", *SENTENCES),
    inputs=STRINGS,
)
STS_B = Task(
    "sts-b",
    ("corr", "pearson", "spearmanr"),
    None,
    "STS-B",
    {
        "train": Layout("train.tsv", 7, 8, -1, columns=10),
        "dev": Layout("dev.tsv", 7, 8, -1, columns=10),
        "test": Layout("test.tsv", 7, 8),
    },
    HubDataset(HUB, "stsb", *SENTENCES),
    inputs=SENTENCES,
)
QQP = Task(
    "qqp",
    ("acc_and_f1", "acc", "f1"),
    folder="QQP",
    splits={
        "train": Layout("train.tsv", 3, 4, 5),
        "dev": Layout("dev.tsv", 3, 4, 5),
        "test": Layout("test.tsv", 1, 2),
    },
    hub=HubDataset(HUB, "qqp", "question1", "question2"),
    inputs=("question1", "question2"),
)
MNLI = Task(
    "mnli",
    ("acc",),
    ("contradiction", "entailment", "neutral"),
    "MNLI",
    {
        "train": Layout("train.tsv", 8, 9, -1),
        "dev_matched": Layout("dev_matched.tsv", 8, 9, -1),
        "dev_mismatched": Layout("dev_mismatched.tsv", 8, 9, -1),
        "test_matched": Layout("test_matched.tsv", 8, 9),
        "test_mismatched": Layout("test_mismatched.tsv", 8, 9),
    },
    HubDataset(
        HUB,
        "mnli",
        "premise",
        "hypothesis",
        splits={"train": "train"}
        | {
            f"{split}_{genre}": f"{hub_split}_{genre}"
            for split, hub_split in (("dev", "validation"), ("test", "test"))
            for genre in ("matched", "mismatched")
        },
    ),
    ("dev_matched", "dev_mismatched"),
    ("test_matched", "test_mismatched"),
    inputs=SENTENCES,
)
AX = Task(
    "ax",
    ("mcc",),
    MNLI.labels,
    "AX",
    {"test": Layout("diagnostic.tsv", 1, 2)},
    HubDataset(HUB, "ax", "premise", "hypothesis"),
    (),
    inputs=SENTENCES,
)

GLUE = (
    COLA,
    _single("sst-2", "SST-2", ("acc",)),
    MRPC,
    STS_B,
    QQP,
    MNLI,
    _pair("qnli", "QNLI", "qnli", ("question", "sentence"), ENTAILMENT),
    _pair("rte", "RTE", "rte", SENTENCES, ENTAILMENT),
    _pair("wnli", "WNLI", "wnli", SENTENCES, ("0", "1")),
    AX,
)
