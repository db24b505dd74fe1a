"""Labels as people write them: describe_rows, or refused with the form that works; never misread without a word."""

from __future__ import annotations

import json

import pytest

from offramp.answers import MULTI_LABEL
from offramp.data.custom_task import infer_task, label_rows, describe_rows
from offramp.data.table import Columns, read_table
from offramp.errors import BadInput

PEOPLE = ["a", "b", "a;b", "b", "a", "b;c", "c", "a", "c;a", "b"]


def table(tmp_path, labels, header="text,label", name="t.csv", column=None):
    """A CSV file with these cells behind a text, or JSON lines with these values."""
    if name.endswith(".jsonl"):
        lines = [json.dumps({"text": f"text {i}", "label": label}) for i, label in enumerate(labels)]
    else:
        cells = [str(label) if label == "" or str(label)[0] == '"' else f'"{label}"' for label in labels]
        lines = [header, *(f"text {i},{cell}" for i, cell in enumerate(cells))]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return read_table(str(tmp_path / name), Columns(None, None, column))


def sets(found, task):
    return [{task.labels[i] for i, yes in enumerate(row) if yes} for row in label_rows(found, task).labels]


EXPECTED = [set(cell.split(";")) for cell in PEOPLE]


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda parts: str(parts), "auto"),  # ['a', 'b'], as pandas writes a list
        (lambda parts: json.dumps(parts).replace('"', '""'), "auto"),  # ["a"], as JSON in a cell
        (";".join, "multi-label"),
        ("|".join, "multi-label"),
        (", ".join, "multi-label"),
    ],
)
def test_several_labels_in_a_cell(write, kind, tmp_path):
    found = table(tmp_path, [write(cell.split(";")) for cell in PEOPLE])
    task = infer_task(found, kind)
    assert task.answer_type is MULTI_LABEL and task.labels == ("a", "b", "c") and sets(found, task) == EXPECTED


def test_lists_in_json_lines_and_ones_by_position(tmp_path):
    found = table(tmp_path, [cell.split(";") for cell in PEOPLE], name="t.jsonl")
    assert sets(found, infer_task(found)) == EXPECTED
    flags = table(tmp_path, [[int(name in cell) for name in "abc"] for cell in PEOPLE], name="f.jsonl")
    task = infer_task(flags)
    assert task.answer_type is MULTI_LABEL and task.labels == ("0", "1", "2")
    assert [{"abc"[int(name)] for name in row} for row in sets(flags, task)] == EXPECTED


def test_a_column_per_class(tmp_path):
    lines = ["text,a,b,c", *(f"t{i},{','.join(str(int(n in cell)) for n in 'abc')}" for i, cell in enumerate(PEOPLE))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    found = read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,b,c"))
    task = infer_task(found)
    assert task.answer_type is MULTI_LABEL and task.labels == ("a", "b", "c") and sets(found, task) == EXPECTED
    (tmp_path / "t.csv").write_text("text,a,b\nx,1,perhaps\n")
    with pytest.raises(BadInput, match="line 2: column 'b' holds 'perhaps', expected 0 or 1"):
        read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,b"))
    with pytest.raises(BadInput, match="Unknown column 'd'"):
        read_table(str(tmp_path / "t.csv"), Columns(None, None, "a,d"))


@pytest.mark.parametrize("mark", [",", ";", "|"])
def test_names_that_look_joined_are_asked_about(mark, tmp_path):
    found = table(tmp_path, [cell.replace(";", mark) for cell in PEOPLE])
    with pytest.raises(BadInput, match="look like several in one; give `problem='multi-label'`"):
        infer_task(found)
    assert infer_task(found, "single-label").num_labels == 6


def test_a_comma_in_a_class_is_no_list(tmp_path):
    found = table(tmp_path, ["food, drink", "travel", "food, drink", "sports, cars", "travel", "sports, cars"])
    assert infer_task(found).labels == ("food, drink", "sports, cars", "travel")


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["nan", "n/a", "", "NaN", "null"])
def test_a_gap_among_numbers_is_a_row_without_a_label(gap, tmp_path):
    found = table(tmp_path, [*(i / 4 for i in range(60)), gap, 2.5])
    task = infer_task(found)
    assert task.labels is None
    rows = label_rows(found, task)
    assert len(rows) == 61 and "1 rows whose label is no number were skipped" in rows.skipped[0]
    classes = table(tmp_path, [*(i % 3 for i in range(30)), gap])
    task = infer_task(classes)
    assert task.labels == ("0", "1", "2") and "1 rows without a label were skipped" in label_rows(classes, task).skipped[0]


def test_words_among_numbers_are_no_regression(tmp_path):
    found = table(tmp_path, [0.5, 1.5, "good", "bad", "good", 0.5, 1.5, 1.5])
    assert infer_task(found).labels == ("0.5", "1.5", "bad", "good")


def test_a_class_per_row_is_refused_with_a_hint(tmp_path):
    with pytest.raises(BadInput, match="is the label in another column\\? Say which with `label_column=`"):
        infer_task(table(tmp_path, [f"id-{i}" for i in range(60)]))
    assert infer_task(table(tmp_path, [f"c{i % 25}" for i in range(100)])).num_labels == 25


# -- columns -------------------------------------------------------------------------------------


def test_rows_with_too_many_columns_are_skipped_and_told_like_those_with_too_few(tmp_path):
    """`a good film, not bad,yes` brought a class of its own."""
    (tmp_path / "t.csv").write_text("text,label\na film,yes\na good film, not bad,yes\nshort\na plot,no\n")
    found = read_table(str(tmp_path / "t.csv"), Columns())
    assert found.labels == ["yes", "no"]
    assert "2 rows with too few or too many columns were skipped, the first in line 3" in found.skipped[0]
    (tmp_path / "t.csv").write_text("text,label,label\na,b,c\n")
    with pytest.raises(BadInput, match="two columns called 'label'"):
        read_table(str(tmp_path / "t.csv"), Columns())


def test_no_label_in_any_row(tmp_path):
    for kind in ("auto", "multi-label"):
        with pytest.raises(BadInput, match="no label in any row"):
            infer_task(table(tmp_path, ["", "", ""]), kind)


def test_what_was_understood_is_one_line(tmp_path):
    found = table(tmp_path, ["yes", "no", "yes", ""])
    task = infer_task(found)
    assert describe_rows(task, label_rows(found, task)) == "single label classification: no 1, yes 2; 3 rows used"
    several = table(tmp_path, PEOPLE)
    task = infer_task(several, "multi-label")
    assert describe_rows(task, label_rows(several, task)) == "multi label classification: a 5, b 5, c 3; 10 rows used"
    values = table(tmp_path, [0.5, 4.25, 1])
    assert (
        describe_rows(infer_task(values), label_rows(values, infer_task(values)))
        == "regression, values from 0.5 to 4.25; 3 rows used"
    )
