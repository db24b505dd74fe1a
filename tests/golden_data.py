"""Reading, metrics and files of the ELUE tasks, against what the original's own code read, computed and wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from golden_case import Case, Check, claim, close
from offramp.data.metrics import score
from offramp.data.task import Rows, Task
from offramp.data.task_files import read_split
from offramp.data.tasks import TASKS
from offramp.originals.submissions.files import write_elue
from offramp.policies import Policy

__all__ = ["checks_of_data"]


def checks_of_data(case: Case) -> Iterator[Check]:
    """All three."""
    with tempfile.TemporaryDirectory() as folder:
        yield from checks_of_reading(case, Path(folder))
    for name in case.about["labels"]:
        yield from checks_of_metrics(case, name, TASKS[f"elue-{name}"])
    with tempfile.TemporaryDirectory() as folder:
        yield from checks_of_files(case, Path(folder))


def checks_of_reading(case: Case, folder: Path) -> Iterator[Check]:
    """The texts and labels of every split of every task, and the tasks' labels and kinds."""
    for name, content in case.about["files_in"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode("utf-8"))
    for name, labels in case.about["labels"].items():
        task = TASKS[f"elue-{name}"]
        yield claim(f"labels of {name}", task.labels == (None if labels == [None] else tuple(labels)))
        regression = case.about["output_mode"][name] == "regression"
        yield claim(f"kind of {name}", task.answer_type.needs_tolerance == regression)
    for name, wanted in case.about["examples"].items():
        task_name, split = name.split("/")
        task = TASKS[f"elue-{task_name}"]
        rows = read_split(task, split, folder / task_name)
        texts = [text if isinstance(text, tuple) else (text, None) for text in rows.texts]
        yield claim(f"texts of {name}", texts == [(row["text_a"], row.get("text_b")) for row in wanted])
        yield claim(f"labels of {name}", _written(rows, task) == [_wanted(row, task) for row in wanted])


def _written(rows: Rows, task: Task) -> list[Any]:
    if rows.labels is None:
        return [None] * len(rows)
    labels: list[Any] = list(rows.labels)
    return labels if task.labels is None else [task.labels[label] for label in labels]


def _wanted(row: dict[str, Any], task: Task) -> Any:
    return float(row["label"]) if task.labels is None and row["label"] is not None else row["label"]


def checks_of_metrics(case: Case, name: str, task: Task) -> Iterator[Check]:
    """Every metric that the original computes."""
    predictions, labels = case.take(f"metrics/{name}/preds"), case.take(f"metrics/{name}/labels")
    if predictions is None or labels is None:
        return
    found = score(task.metrics, predictions.numpy(), labels.numpy())
    yield claim(f"the main metric of {name}", task.metrics[0] in ("acc", "acc_and_f1", "corr"), task.metrics[0])
    for metric, value in found.items():
        if (wanted := case.take(f"metrics/{name}/{metric}")) is not None:
            yield close(f"metrics/{name}/{metric}", torch.tensor(value, dtype=torch.float32), wanted.float())


def checks_of_files(case: Case, folder: Path) -> Iterator[Check]:
    """The predictions and exit layers of another golden case, written as the original wrote them."""
    from conformance import answer, policy_of

    for name, run in case.about["runs"].items():
        (scratch := case.scratch / name).mkdir()
        other = Case(case.folder / run["checkpoint"], scratch)
        task, model = TASKS[f"elue-{run['task']}"], other.model()
        (folder / name).mkdir()
        for value in run["values"]:
            key = "threshold" if run["policy"] == "entropy" else "patience"
            policy: Policy = policy_of(run | {key: value})
            layers, logits = answer(model, other, policy, len(other.inputs["labels"]))
            answers: list[Any] = logits.numpy().ravel().tolist()
            if task.labels is not None:
                answers = [task.labels[place] for place in logits.argmax(-1).tolist()]
            for file in write_elue(folder / name, run["task"], answers, layers.tolist(), value):
                wanted = case.about["files_out"][f"{name}/{file.name}"]
                yield claim(f"file {name}/{file.name}", _same(file.read_bytes().decode(), wanted, task))


def _same(got: str, wanted: str, task: Task) -> bool:
    if task.labels is not None or "exit_layer" in wanted:
        return got == wanted
    (head, *rows), (wanted_head, *wanted_rows) = got.split("\r\n"), wanted.split("\r\n")
    if head != wanted_head or len(rows) != len(wanted_rows) or rows[-1] or wanted_rows[-1]:
        return False
    pairs = zip(rows[:-1], wanted_rows[:-1], strict=True)
    return all(
        a.split("\t")[0] == b.split("\t")[0] and abs(float(a.split("\t")[1]) - float(b.split("\t")[1])) < 1e-4
        for a, b in pairs
    )
