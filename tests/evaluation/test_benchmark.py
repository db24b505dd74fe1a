"""The benchmark: which entries are compared, and on which texts."""

from __future__ import annotations

import json

import numpy as np

import offramp
from offramp.answers import SINGLE_LABEL
from offramp.evaluation.benchmark.entry import Entry
from offramp.evaluation.benchmark.measuring import EntryResult, QualityScorer
from offramp.evaluation.benchmark.run import _spread, to_dict
from offramp.policies import TopK
from offramp.report.benchmark import table
from tests.rankings import random_rankings, reranker
from tests.taggers import LONG, tagger


def row(
    name: str, adaptive: bool, throughput: float, agreement: float, layers: float = 6.0, batch: int = 8
) -> EntryResult:
    spread = (throughput * 0.9, throughput * 1.1)
    return EntryResult(
        name, adaptive, "torch", "float32", batch, throughput, spread, None, None, None, agreement, None, layers
    )


ROWS = [
    row("plain Hugging Face", False, 10, 1.0),
    row("accurate int8", False, 40, 0.995),
    row("inaccurate int8", False, 60, 0.90),
    row("first layers", False, 80, 0.99, layers=2),
    row("offramp", True, 90, 0.99, layers=2),
    row("plain Hugging Face", False, 20, 1.0, batch=32),
]


def test_an_adaptive_model_is_compared_with_the_best_full_model_of_at_least_its_quality():
    values = to_dict(ROWS[4], ROWS)
    assert values["to_plain"] == 9 and values["best_peer"] == "accurate int8" and values["to_best_peer"] == 90 / 40
    assert to_dict(ROWS[1], ROWS)["to_best_peer"] is None  # it is a baseline itself
    assert not to_dict(ROWS[2], ROWS)["counts"]


def test_the_table_marks_entries_with_too_many_changed_predictions():
    results = {
        "rows": [to_dict(result, ROWS) for result in ROWS],
        "cpu": "a CPU",
        "threads": 1,
        "torch": "2",
        "date": "2026-01-01",
    }
    printed = table(results)
    assert "inaccurate int8 *" in printed and "less than 98 %" in printed and printed.count("batch ") == 2


def test_predictions_are_compared_with_the_full_model():
    full = np.array([0, 1, 1, 0])
    scorer = QualityScorer(SINGLE_LABEL, full, lambda answers: float((answers == 1).mean()))
    answers = np.array([0, 1, 0, 0])
    assert scorer.agreement(answers) == 0.75 and scorer.score(answers) == 0.25


def test_texts_are_spread_over_all():
    assert _spread(list(range(100)), 5) == [0, 24, 49, 74, 99] and _spread([1, 2], 9) == [1, 2]
    assert Entry("offramp", "early-exit").adaptive and not Entry("baseline", "full").adaptive


def test_a_reranker_is_compared_with_int8_and_with_fewer_documents(tmp_path):
    model = reranker(tmp_path / "cross-encoder", exits=[0, 2, 4])
    model.config.policy = TopK(2, 0.3, (0.4, 0.2)).to_dict()
    model.config.answer_options = {**model.config.answer_options, "top_k": 2}
    model.save_pretrained(tmp_path / "fast")
    rankings = random_rankings(6, seed=5)
    result = offramp.benchmark(
        tmp_path / "fast", rankings, batch=[1, 4], baselines=["plain", "onnx", "compile"], rounds=1, memory=False
    )
    rows = {entry["name"]: entry for entry in result.rows if entry["batch"] == 1}
    exact = ["plain Hugging Face", "torch float32", "ONNX Runtime float32"]
    assert [rows[name]["agreement"] for name in exact] == [1.0] * 3
    assert rows["offramp, torch float32"]["mean_layers"] < 4 and rows["offramp, torch float32"]["p50_ms"] > 0
    fewer = [entry for name, entry in rows.items() if "of the documents" in name]
    assert fewer and all(entry["mean_layers"] == 4 and entry["agreement"] < 1 for entry in fewer)
    assert "queries/s" in str(result) and not any("compile" in name for name in rows)


def test_a_tagger_is_compared_by_the_entities_of_texts_of_any_length(tmp_path):
    tagger(tmp_path / "tagger", policy={"name": "confidence", "threshold": 0.3}).save_pretrained(tmp_path / "fast")
    texts = [LONG, "a lovely film", "goodly films, a plot", "not dull", "long short plot"]
    span = {"label": "PER", "start": 2, "end": 8}
    rows = [{"text": text, "spans": [span] if text == "a lovely film" else []} for text in texts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = offramp.benchmark(
        tmp_path / "fast",
        tmp_path / "rows.jsonl",
        batch=[1, 4],
        baselines=["plain", "onnx", "pipeline"],
        rounds=1,
        memory=False,
    )
    for size in (1, 4):
        entries = {entry["name"]: entry for entry in result.rows if entry["batch"] == size}
        exact = ["plain Hugging Face", "torch float32", "ONNX Runtime float32"]
        assert [entries[name]["agreement"] for name in exact] == [1.0] * 3
        assert entries["offramp, torch float32"]["mean_layers"] < 4
        assert entries["plain Hugging Face"]["score"] is not None
    assert not any("pipeline" in entry["name"] for entry in result.rows)
