"""SQuAD 1.1 and 2.0: the official JSON, rows of one's own, or the Hub's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offramp.answers import SPAN
from offramp.data.given import Given
from offramp.data.questions import Gold, Question, Reading, checked, read_squad
from offramp.data.reading import Source, format_of, listed, read_records
from offramp.data.table import load_hub
from offramp.data.task import Rows, Task
from offramp.errors import BadInput

__all__ = ["SQUAD", "question_rows", "questions_in_memory"]

FILES = {"squad": "{split}-v1.1.json", "squad2": "{split}-v2.0.json"}
HUB = {"squad": "rajpurkar/squad", "squad2": "rajpurkar/squad_v2"}
METRICS = ("span_f1", "exact_match")
INPUTS = ("question", "context")

SQUAD = (
    Task("squad", METRICS, ("start", "end"), inputs=INPUTS, kind=SPAN, test_splits=()),
    Task("squad2", METRICS, ("start", "end"), inputs=INPUTS, kind=SPAN, no_answer=True, test_splits=()),
)


def question_rows(
    task: Task,
    split: str,
    file: str | None = None,
    data_dir: str | None = None,
    dataset: str | None = None,
    config: str | None = None,
) -> Rows:
    """A split's questions, as pairs with their contexts; their labels are the right answers."""
    training = split == "train"
    if split not in ("train", "dev"):
        raise BadInput(f"{task.name} has the splits train and dev, not {split}.")
    if file is None and data_dir is not None:
        file = str(Path(data_dir) / FILES[task.name].format(split=split))
        if not Path(file).is_file():
            raise BadInput(f"No file {file}; name others with `train_file=` and `dev_file=` (`texts=` of evaluate).")
    if file is not None:
        is_official = file.removesuffix(".gz").endswith(".json")
        reading = read_squad(Path(file), training) if is_official else _table(file, training)
    else:
        reading = _hub(dataset or HUB[task.name], config, "validation" if split == "dev" else split, training)
    without = [one for one in reading.questions if (one.impossible or not one.answers) and reading.labelled]
    if without and not task.no_answer:
        raise BadInput(
            f"{file or dataset or HUB[task.name]}: {len(without):,} questions have no answer, the first is "
            f"{without[0].id}; that is SQuAD 2.0's kind: use `task='squad2'`."
        )
    texts: list[Any] = [(one.question, one.context) for one in reading.questions]
    labels = [() if one.impossible else one.answers for one in reading.questions] if reading.labelled else None
    return Rows(texts, labels, reading.skipped, [one.id for one in reading.questions])


def questions_in_memory(memory: Given, no_answer: bool) -> Rows:
    """Questions that the caller holds: pairs with their contexts, or a table; answers where there are some."""
    source = Source(memory.name, "memory", *INPUTS)
    if memory.table is not None:
        columns = {name: list(memory.table[name]) for name in memory.columns() or ()}
        records = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    else:
        records = [dict(zip(INPUTS, pair, strict=True)) for pair in memory.read()]
    if memory.labels is not None:
        records = [row | {"answer": answer} for row, answer in zip(records, memory.labels, strict=True)]
    labelled = any(name in row for row in records for name in ("answer", "answers"))
    reading = checked((_row(source, line, row) for line, row in enumerate(records, 1)), memory.name, False)
    if labelled and not no_answer and any(not one.answers for one in reading.questions):
        raise BadInput(f"{memory.name}: some questions have no answer, and the model was trained on such that have.")
    texts: list[Any] = [(one.question, one.context) for one in reading.questions]
    labels = [one.answers for one in reading.questions] if labelled else None
    return Rows(texts, labels, reading.skipped, [one.id for one in reading.questions])


def _table(file: str, training: bool) -> Reading:
    """Rows of a question, its context, its answer and where that starts; no answer: it has none there."""
    if not Path(file).is_file():
        raise BadInput(f"No file {file}.")
    kind = format_of(file)
    if kind == "text":
        raise BadInput(f"{file}: expected SQuAD's .json, or a .tsv, .csv, .jsonl or .parquet file, told by its ending.")
    source = Source(file, kind, *INPUTS)
    odd: list[int] = []
    rows = list(read_records(source, odd))
    labelled = any(name in row for _, row in rows for name in ("answer", "answers"))
    if training and rows and not labelled:
        raise BadInput(f"{file} has the columns {listed(list(rows[0][1]))}; questions to learn from have an `answer`.")
    reading = checked((_row(source, line, row) for line, row in rows), file, training)
    reading.labelled = labelled
    if odd:
        reading.skipped += (f"{file}: {len(odd)} rows with too few or too many columns were skipped.",)
    return reading


def _row(source: Source, line: int, row: Mapping[str, Any]) -> Question:
    for name in INPUTS:
        if name not in row:
            raise source.at(line, f"there is no column {name!r}; it has {listed(list(row))}.")
        if not isinstance(row[name], str) or not row[name].strip():
            raise source.at(line, f"its {name} is empty, or no text.")
    name = str(line if row.get("id") in (None, "") else row["id"])
    if "answers" in row:
        return Question(name, row["question"], row["context"], _several(source, line, row["answers"]))
    answer, start = row.get("answer"), row.get("start")
    if answer in (None, ""):
        return Question(name, row["question"], row["context"])
    if start in (None, ""):
        start = row["context"].find(str(answer))
    try:
        begin = int(float(str(start)))
        if begin != float(str(start)):  # a column with gaps is written 9.0
            raise ValueError
    except (ValueError, OverflowError):
        raise source.at(line, f"its start is {start!r:.40}; it is a number from 0, in characters.") from None
    return Question(name, row["question"], row["context"], (Gold(str(answer), begin),))


def _several(source: Source, line: int, answers: Any) -> tuple[Gold, ...]:
    """As the Hub's rows have them: texts and starts, in two lists."""
    try:
        read = json.loads(answers) if isinstance(answers, str) else answers
        pairs = zip(read["text"], read["answer_start"], strict=True)
        return tuple(Gold(str(text), int(start)) for text, start in pairs)
    except (TypeError, ValueError, KeyError) as err:
        raise source.at(line, f"its answers are {answers!r:.60}; expected texts and answer_starts.") from err


def _hub(path: str, config: str | None, split: str, training: bool) -> Reading:
    data = load_hub(path, config, split)
    source = Source(f"{path}, split {split}", "parquet", *INPUTS)

    def rows() -> Iterator[Question]:
        for line, row in enumerate(data, 1):
            yield _row(source, line, row)

    reading = checked(rows(), source.name, training)
    reading.labelled = not {"answer", "answers"}.isdisjoint(data.column_names)
    return reading
