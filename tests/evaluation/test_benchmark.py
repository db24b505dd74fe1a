"""The benchmark's accounts: who is compared with whom, and on what."""

from __future__ import annotations

import numpy as np

from offramp.answers import SINGLE_LABEL
from offramp.evaluation.benchmark.entries import Entry
from offramp.evaluation.benchmark.race import QualityScorer, Row
from offramp.evaluation.benchmark.run import _spread, told
from offramp.report.benchmark import table


def row(name: str, adaptive: bool, throughput: float, agreement: float, layers: float = 6.0, batch: int = 8) -> Row:
    spread = (throughput * 0.9, throughput * 1.1)
    return Row(name, adaptive, "torch", "float32", batch, throughput, spread, None, None, None, agreement, None, layers)


ROWS = [
    row("plain Hugging Face", False, 10, 1.0),
    row("int8 that keeps", False, 40, 0.995),
    row("int8 that changes", False, 60, 0.90),
    row("the first layers", False, 80, 0.99, layers=2),
    row("offramp", True, 90, 0.99, layers=2),
    row("plain Hugging Face", False, 20, 1.0, batch=32),
]


def test_an_adaptive_model_is_compared_with_the_best_full_depth_peer_that_answers_as_well():
    made = told(ROWS[4], ROWS)
    assert made["to_plain"] == 9 and made["best_peer"] == "int8 that keeps" and made["to_best_peer"] == 90 / 40
    assert told(ROWS[1], ROWS)["to_best_peer"] is None  # it is itself a peer
    assert not told(ROWS[2], ROWS)["counts"]


def test_the_table_marks_who_answers_too_differently():
    results = {
        "rows": [told(one, ROWS) for one in ROWS],
        "cpu": "a CPU",
        "threads": 1,
        "torch": "2",
        "date": "2026-01-01",
    }
    printed = table(results)
    assert "int8 that changes *" in printed and "less than 98 %" in printed and printed.count("batch ") == 2


def test_answers_are_judged_by_the_full_models():
    full = np.array([0, 1, 1, 0])
    judge = QualityScorer(SINGLE_LABEL, full, lambda answers: float((answers == 1).mean()))
    logits = np.eye(2)[[0, 1, 0, 0]]
    assert judge.agreement(logits) == 0.75 and judge.score(logits) == 0.25


def test_texts_are_spread_over_all():
    assert _spread(list(range(100)), 5) == [0, 24, 49, 74, 99] and _spread([1, 2], 9) == [1, 2]
    assert Entry("ours", "leaving").adaptive and not Entry("theirs", "full").adaptive
