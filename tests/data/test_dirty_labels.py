"""Labels in many notations are parsed, or rejected with a hint; they are never misread silently."""

from __future__ import annotations

import json

import pytest

from offramp.answers import MULTI_LABEL
from offramp.data.custom_task import describe_rows, infer_task, label_rows
from offramp.data.table import Columns, read_table
from offramp.errors import BadInput

CELLS = ["a", "b", "a;b", "b", "a", "b;c", "c", "a", "c;a", "b"]


def table(tmp_path, labels, header="text,label", name="t.csv", column=None):
    """Write and read a CSV file (or JSON lines) with these labels."""
    if name.endswith(".jsonl"):
        lines = [json.dumps({"text": f"text {i}", "label": label}) for i, label in enumerate(labels)]
    else:
        cells = [str(label) if label == "" or str(label)[0] == '"' else f'"{label}"' for label in labels]
        lines = [header, *(f"text {i},{cell}" for i, cell in enumerate(cells))]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return read_table(str(tmp_path / name), Columns(None, None, column))


def label_sets(labelled, task):
    return [{task.labels[i] for i, present in enumerate(row) if present} for row in label_rows(labelled, task).labels]


EXPECTED = [set(cell.split(";")) for cell in CELLS]


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (lambda parts: str(parts), "auto"),  # ['a', 'b'], as pandas writes a list
        (lambda parts: json.dumps(parts).replace('"', '""'), "auto"),  # ["a"], as JSON in a cell
        (";".join, "multi-label"),
        ("|".join, "multi-label"),
        (", ".join, "multi-label"),
    ],
)
def test_several_labels_in_a_cell(write, problem, tmp_path):
    labelled = table(tmp_path, [write(cell.split(";")) for cell in CELLS])
    task = infer_task(labelled, problem)
    assert task.answer_type is MULTI_LABEL and task.labels == ("a", "b", "c") and label_sets(labelled, task) == EXPECTED


def test_lists_in_json_lines_and_ones_by_position(tmp_path):
    labelled = table(tmp_path, [cell.split(";") for cell in CELLS], name="t.jsonl")
    assert label_sets(labelled, infer_task(labelled)) == EXPECTED
    flags = table(tmp_path, [[int(name in cell) for name in "abc"] for cell in CELLS], name="f.jsonl")
    task = infer_task(flags)
    assert task.answer_type is MULTI_LABEL and task.labels == ("0", "1", "2")
    assert [{"abc"[int(name)] for name in row} for row in label_sets(flags, task)] == EXPECTED


def test_a_column_per_class(tmp_path):
    lines = ["text,a,b,c", *(f"t{i},{','.join(str(int(n in cell)) for n in 'abc')}" for i, cell in enumerate(CELLS))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    labelled = read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,b,c"))
    task = infer_task(labelled)
    assert task.answer_type is MULTI_LABEL and task.labels == ("a", "b", "c") and label_sets(labelled, task) == EXPECTED
    (tmp_path / "t.csv").write_text("text,a,b\nx,1,perhaps\n")
    with pytest.raises(BadInput, match="line 2: column 'b' is 'perhaps', expected 0 or 1"):
        read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,b"))
    with pytest.raises(BadInput, match="Unknown column 'd'"):
        read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,d"))


@pytest.mark.parametrize("separator", [",", ";", "|"])
def test_ambiguous_joined_names_raise(separator, tmp_path):
    labelled = table(tmp_path, [cell.replace(";", separator) for cell in CELLS])
    with pytest.raises(BadInput, match="look like several labels; use `problem='multi-label'`"):
        infer_task(labelled)
    assert infer_task(labelled, "single-label").num_labels == 6


def test_a_class_with_a_comma_is_not_split(tmp_path):
    labelled = table(tmp_path, ["food, drink", "travel", "food, drink", "sports, cars", "travel", "sports, cars"])
    assert infer_task(labelled).labels == ("food, drink", "sports, cars", "travel")


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["nan", "n/a", "", "NaN", "null"])
def test_a_missing_number_is_a_row_without_a_label(missing, tmp_path):
    labelled = table(tmp_path, [*(i / 4 for i in range(60)), missing, 2.5])
    task = infer_task(labelled)
    assert task.labels is None
    rows = label_rows(labelled, task)
    assert len(rows) == 61 and "skipped 1 rows whose label is not a number" in rows.skipped[0]
    classes = table(tmp_path, [*(i % 3 for i in range(30)), missing])
    task = infer_task(classes)
    assert task.labels == ("0", "1", "2") and "skipped 1 rows without a label" in label_rows(classes, task).skipped[0]


def test_words_among_numbers_are_classes(tmp_path):
    labelled = table(tmp_path, [0.5, 1.5, "good", "bad", "good", 0.5, 1.5, 1.5])
    assert infer_task(labelled).labels == ("0.5", "1.5", "bad", "good")


def test_a_class_per_row_raises_with_a_hint(tmp_path):
    with pytest.raises(BadInput, match=r"has 60 classes in 60 rows .* Use `label_column=`"):
        infer_task(table(tmp_path, [f"id-{i}" for i in range(60)]))
    assert infer_task(table(tmp_path, [f"c{i % 25}" for i in range(100)])).num_labels == 25


# -- columns -------------------------------------------------------------------------------------


def test_rows_with_too_many_or_too_few_columns_are_skipped_with_a_note(tmp_path):
    """`a good film, not bad,yes` once added a class."""
    (tmp_path / "t.csv").write_text("text,label\na film,yes\na good film, not bad,yes\nshort\na plot,no\n")
    labelled = read_table(str(tmp_path / "t.csv"), Columns())
    assert labelled.labels == ["yes", "no"]
    assert "skipped 2 rows with too few or too many columns, the first in line 3" in labelled.skipped[0]
    (tmp_path / "t.csv").write_text("text,label,label\na,b,c\n")
    with pytest.raises(BadInput, match="two columns named 'label'"):
        read_table(str(tmp_path / "t.csv"), Columns())


def test_no_label_in_any_row(tmp_path):
    for problem in ("auto", "multi-label"):
        with pytest.raises(BadInput, match="no label in any row"):
            infer_task(table(tmp_path, ["", "", ""]), problem)


def test_describe_rows(tmp_path):
    labelled = table(tmp_path, ["yes", "no", "yes", ""])
    task = infer_task(labelled)
    assert describe_rows(task, label_rows(labelled, task)) == "single label classification: no 1, yes 2; 3 rows used"
    multi_label = table(tmp_path, CELLS)
    task = infer_task(multi_label, "multi-label")
    assert (
        describe_rows(task, label_rows(multi_label, task)) == "multi label classification: a 5, b 5, c 3; 10 rows used"
    )
    values = table(tmp_path, [0.5, 4.25, 1])
    assert (
        describe_rows(infer_task(values), label_rows(values, infer_task(values)))
        == "regression, values from 0.5 to 4.25; 3 rows used"
    )
