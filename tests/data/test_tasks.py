from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import f1_score, matthews_corrcoef

from offramp.answers import SPAN
from offramp.data.metrics import METRICS, score
from offramp.data.task_files import parse_label, read_split
from offramp.data.tasks import TASKS
from offramp.errors import BadInput, UnknownName

CASE = Path(__file__).parents[1] / "golden" / "elue-data"


@pytest.fixture(scope="module")
def elue(tmp_path_factory):
    """The golden task folders, written out."""
    root = tmp_path_factory.mktemp("elue")
    about = json.loads((CASE / "case.json").read_text("utf-8"))
    for name, content in about["files_in"].items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content.encode("utf-8"))
    return root, about


def test_elue_files_are_read_like_the_original(elue):
    root, about = elue
    checked = 0
    for name, examples in about["examples"].items():
        folder, split = name.split("/")
        task = TASKS[f"elue-{folder}"]
        rows = read_split(task, split, root)
        assert rows.texts == [
            example["text_a"] if example["text_b"] is None else (example["text_a"], example["text_b"])
            for example in examples
        ]
        labels = [example["label"] for example in examples]
        if split == "test":
            assert rows.labels is None
        elif task.labels is None:
            assert rows.labels == [float(label) for label in labels]
        else:
            assert rows.labels == [task.labels.index(label) for label in labels]
        checked += 1
    assert checked == 18


def test_metrics_equal_the_originals():
    expected = load_file(CASE / "expected.safetensors")
    checked = 0
    for key, value in expected.items():
        _, task, name = key.split("/")
        if name in ("preds", "labels"):
            continue
        computed = METRICS[name].compute(expected[f"metrics/{task}/preds"], expected[f"metrics/{task}/labels"])
        assert computed == pytest.approx(float(value), abs=1e-5), key
        assert name in TASKS[f"elue-{task}"].metrics
        checked += 1
    assert checked == 10


def test_all_tasks_exist():
    glue = ["ax", "cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst-2", "sts-b", "wnli"]
    elue = ["elue-imdb", "elue-mrpc", "elue-scitail", "elue-snli", "elue-sst-2", "elue-sts-b"]
    assert sorted(TASKS) == sorted([*glue, *elue, "squad", "squad2"])
    for task in TASKS.values():
        assert set(task.metrics) <= set(METRICS)
        assert task.answer_type is SPAN or set(task.dev_splits) <= set(task.splits)


def test_damaged_rows_are_skipped_with_a_note(tmp_path):
    (tmp_path / "QQP").mkdir()
    (tmp_path / "QQP" / "train.tsv").write_bytes(
        "\ufeffid\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\r\n"
        '1\t2\t3\t"open quote\tand\u0085a line\t1\r\n'
        "1\t2\t3\ttoo short\t1\r\n"
        "1\t2\t3\ta\tb\t1.0\r\n"
        "1\t2\t3\ta\tb\t-\r\n"
        "1\t2\t3\ta\tb\t 0\r\n".encode()
    )
    rows = read_split(TASKS["qqp"], "train", tmp_path)
    assert rows.texts == [('"open quote', "and\u0085a line"), ("a", "b"), ("a", "b")]
    assert rows.labels == [1, 1, 0]
    assert len(rows.skipped) == 2
    assert "skipped 1 rows with too few columns, the first in line 3" in rows.skipped[0]
    assert "skipped 1 rows without a label, the first in line 5" in rows.skipped[1]


def test_an_unknown_label_raises_with_its_line_and_the_known_labels(tmp_path):
    (tmp_path / "train.tsv").write_text("index\ta\tb\tlabel\n0\tx\ty\tentailment\n1\tx\ty\tperhaps\n")
    with pytest.raises(BadInput, match=r"train.tsv, line 3: unknown label 'perhaps', expected one of entailment, not_"):
        read_split(TASKS["rte"], "train", tmp_path)


def test_a_task_folder_or_another_file_can_be_read(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\n")
    (tmp_path / "other.tsv").write_text("sentence\tlabel\nbad\t0\n")
    assert read_split(TASKS["sst-2"], "dev", tmp_path).texts == ["good"]
    assert read_split(TASKS["sst-2"], "dev", file=tmp_path / "other.tsv").labels == [0]
    (tmp_path / "cola.tsv").write_text("gj04\t1\t\tThe sailors rode.\n")
    assert read_split(TASKS["cola"], "dev", file=tmp_path / "cola.tsv").texts == ["The sailors rode."]


def test_missing_files_raise(tmp_path):
    with pytest.raises(BadInput, match=r"no SST-2/train\.tsv in .*, which contains no files\."):
        read_split(TASKS["sst-2"], "train", tmp_path)
    with pytest.raises(BadInput, match="Folder not found"):
        read_split(TASKS["sst-2"], "train", tmp_path / "no")
    with pytest.raises(BadInput, match="needs its data folder"):
        read_split(TASKS["sst-2"], "train")
    with pytest.raises(UnknownName, match=r"Unknown split of sst-2 'dve'\. Did you mean 'dev'"):
        read_split(TASKS["sst-2"], "dve", tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'sst-2'"):
        TASKS["sst2"]
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(BadInput, match="no usable rows"):
        read_split(TASKS["sst-2"], "dev", tmp_path)


def test_parse_label_ignores_case_and_number_format():
    labels = ("entailment", "not_entailment")
    assert parse_label(" Entailment", labels) == 0
    assert parse_label("1", ("0", "1")) == parse_label("1.0", ("0", "1")) == 1
    assert parse_label("maybe", labels) is None
    assert parse_label("2.5", None) == 2.5
    assert parse_label("nan", None) is None


def test_constant_predictions_score_zero():
    scores = score(("corr", "mcc", "f1"), np.zeros(4), np.array([0, 1, 0, 1]))
    assert scores == {"corr": 0.0, "mcc": 0.0, "f1": 0.0}


@pytest.mark.filterwarnings("ignore:A single label was found")
def test_f1_and_matthews_are_scikit_learns_to_the_last_digit():
    """Also if a class never occurs, or there is only one."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        count, classes = rng.integers(1, 30), rng.integers(1, 5)
        predicted, actual = rng.integers(classes, size=(2, count))
        predicted_sets, actual_sets = rng.integers(2, size=(2, count, classes + 1)) * rng.integers(2, size=classes + 1)
        for average in ("macro", "micro"):
            metric = METRICS[f"f1_{average}"].compute
            assert metric(predicted, actual) == f1_score(actual, predicted, average=average, zero_division=0.0)
            assert metric(predicted_sets, actual_sets) == f1_score(
                actual_sets, predicted_sets, average=average, zero_division=0.0
            )
        assert METRICS["mcc"].compute(predicted, actual) == matthews_corrcoef(actual, predicted)
        assert METRICS["f1"].compute(predicted % 2, actual % 2) == f1_score(
            actual % 2, predicted % 2, zero_division=0.0
        )
