"""SQuAD 1.1 and 2.0: questions from the official JSON, the user's own tables, or the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offramp.answers import SPAN
from offramp.data.input_data import InputData
from offramp.data.questions import Gold, Question, QuestionSet, check_questions, read_squad
from offramp.data.reading import Source, check_file, format_names, infer_format, read_records
from offramp.data.table import load_hub
from offramp.data.task import Rows, Task
from offramp.errors import BadInput

__all__ = ["SQUAD", "question_rows", "questions_in_memory"]

FILES = {"squad": "{split}-v1.1.json", "squad2": "{split}-v2.0.json"}
HUB_PATHS = {"squad": "rajpurkar/squad", "squad2": "rajpurkar/squad_v2"}
INPUTS = ("question", "context")


def _task(name: str, no_answer: bool = False) -> Task:
    return Task(
        name,
        ("span_f1", "exact_match"),
        ("start", "end"),
        inputs=INPUTS,
        explicit_answer_type=SPAN,
        no_answer=no_answer,
        test_splits=(),
    )


SQUAD = (_task("squad"), _task("squad2", no_answer=True))


def question_rows(
    task: Task,
    split: str,
    file: str | None = None,
    data_dir: str | None = None,
    dataset: str | None = None,
    config: str | None = None,
) -> Rows:
    """Return the questions of a split as (question, context) pairs; their labels are the gold answers."""
    training = split == "train"
    if split not in ("train", "dev"):
        raise BadInput(f"{task.name} has the splits train and dev, not {split}.")
    if file is None and data_dir is not None:
        file = str(Path(data_dir) / FILES[task.name].format(split=split))
        if not Path(file).is_file():
            raise BadInput(
                f"File not found: {file}. To use another file, pass `train_file=` or `dev_file=` (evaluate: `texts=`)."
            )
    if file is not None:
        is_official = file.removesuffix(".gz").endswith(".json")
        question_set = read_squad(Path(file), training) if is_official else _read_table(file, training)
    else:
        hub_split = "validation" if split == "dev" else split
        question_set = _read_hub(dataset or HUB_PATHS[task.name], config, hub_split, training)
    questions, labelled = question_set.questions, question_set.labelled
    unanswerable = [question for question in questions if (question.impossible or not question.answers) and labelled]
    if unanswerable and not task.no_answer:
        raise BadInput(
            f"{file or dataset or HUB_PATHS[task.name]}: {len(unanswerable):,} questions have no answer, the first is "
            f"{unanswerable[0].id}; use `task='squad2'` for unanswerable questions."
        )
    labels = [() if question.impossible else question.answers for question in questions] if labelled else None
    return _to_rows(question_set, labels)


def _to_rows(question_set: QuestionSet, labels: list[Any] | None) -> Rows:
    questions = question_set.questions
    texts: list[Any] = [(question.question, question.context) for question in questions]
    return Rows(texts, labels, question_set.skipped, [question.id for question in questions])


def questions_in_memory(memory: InputData, no_answer: bool) -> Rows:
    """Return questions in memory, from (question, context) pairs or a table, with or without answers."""
    source = Source(memory.name, "memory", *INPUTS)
    if memory.table is not None:
        columns = {name: list(memory.table[name]) for name in memory.columns() or ()}
        records = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    else:
        records = [dict(zip(INPUTS, pair, strict=True)) for pair in memory.read()]
    if memory.labels is not None:
        records = [row | {"answer": answer} for row, answer in zip(records, memory.labels, strict=True)]
    labelled = any(name in row for row in records for name in ("answer", "answers"))
    questions = (_to_question(source, line, row) for line, row in enumerate(records, 1))
    question_set = check_questions(questions, memory.name, False)
    if labelled and not no_answer and any(not question.answers for question in question_set.questions):
        raise BadInput(
            f"{memory.name}: some questions have no answer, but the model was trained only on answerable ones."
        )
    return _to_rows(question_set, [question.answers for question in question_set.questions] if labelled else None)


def _read_table(file: str, training: bool) -> QuestionSet:
    """Read a table with the columns question, context, answer and start; an empty answer means unanswerable."""
    format = infer_format(file)
    source = Source(file, format, *INPUTS)
    check_file(source)
    if format == "text":
        raise BadInput(f"{file}: expected a file with the extension .json (SQuAD), .tsv, .csv, .jsonl or .parquet.")
    malformed: list[int] = []
    rows = list(read_records(source, malformed))
    labelled = any(name in row for _, row in rows for name in ("answer", "answers"))
    if training and rows and not labelled:
        raise BadInput(f"{file} has the columns {format_names(list(rows[0][1]))}; training needs a column `answer`.")
    question_set = check_questions((_to_question(source, line, row) for line, row in rows), file, training)
    question_set.labelled = labelled
    if malformed:
        question_set.skipped += (f"{file}: skipped {len(malformed)} rows with too few or too many columns.",)
    return question_set


def _to_question(source: Source, line: int, row: Mapping[str, Any]) -> Question:
    for name in INPUTS:
        if name not in row:
            raise source.error_at(line, f"missing column {name!r}; the columns are {format_names(list(row))}.")
        if not isinstance(row[name], str) or not row[name].strip():
            raise source.error_at(line, f"the {name} is empty or not a text.")
    name = str(line if row.get("id") in (None, "") else row["id"])
    if "answers" in row:
        return Question(name, row["question"], row["context"], _parse_answers(source, line, row["answers"]))
    answer, start = row.get("answer"), row.get("start")
    if answer in (None, ""):
        return Question(name, row["question"], row["context"])
    if start in (None, ""):
        start = row["context"].find(str(answer))
    try:
        position = int(float(str(start)))
        if position != float(str(start)):  # a column with missing values is written as 9.0
            raise ValueError
    except (ValueError, OverflowError):
        message = f"the start of the answer must be a non-negative integer, in characters, got {start!r:.40}."
        raise source.error_at(line, message) from None
    return Question(name, row["question"], row["context"], (Gold(str(answer), position),))


def _parse_answers(source: Source, line: int, answers: Any) -> tuple[Gold, ...]:
    """Parse answers in the Hub's format: a list of texts and a list of starts."""
    try:
        columns = json.loads(answers) if isinstance(answers, str) else answers
        pairs = zip(columns["text"], columns["answer_start"], strict=True)
        return tuple(Gold(str(text), int(start)) for text, start in pairs)
    except (TypeError, ValueError, KeyError) as err:
        message = f"`answers` must have the lists `text` and `answer_start`, got {answers!r:.60}."
        raise source.error_at(line, message) from err


def _read_hub(path: str, config: str | None, split: str, training: bool) -> QuestionSet:
    data = load_hub(path, config, split)
    source = Source(f"{path}, split {split}", "parquet", *INPUTS)

    def questions() -> Iterator[Question]:
        for line, row in enumerate(data, 1):
            yield _to_question(source, line, row)

    question_set = check_questions(questions(), source.name, training)
    question_set.labelled = not {"answer", "answers"}.isdisjoint(data.column_names)
    return question_set
