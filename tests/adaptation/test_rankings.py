"""Rerankers from end to end: adapt, predict, evaluate, calibrate and export rankings."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from datasets import Dataset

import offramp
from offramp.cli.main import main
from offramp.core.chunks import chunks
from offramp.data.input_data import resolve_input
from offramp.data.rankings import RANKING_INPUTS
from offramp.errors import BadInput
from offramp.evaluation.timing import timed_rows
from offramp.policies import TopK
from tests.calls import fails, json_lines
from tests.rankings import random_rankings, save_reranker, write_rankings

pytestmark = pytest.mark.usefixtures("one_thread")

RANKINGS = random_rankings(330, seed=1)
FRESH = random_rankings(60, seed=2)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return save_reranker(tmp_path_factory.mktemp("models") / "reranker")


@pytest.fixture(scope="module")
def fast(original, tmp_path_factory):
    """The reranker, adapted for its top 3."""
    file = write_rankings(tmp_path_factory.mktemp("rankings") / "rankings.jsonl", RANKINGS)
    result = offramp.adapt(original, file, output=original.parent / "fast", risk=0.4, top_k=3, epochs=2, exits=[1, 3])
    assert result, result.reason
    return result


def test_adapting_gives_a_guarantee_about_the_top_documents(fast):
    assert "at most 40 % of reranker's top 3 documents are missing, on average over queries" in fast.guarantee
    assert "99 queries that were not used to train or select the exits" in fast.guarantee
    config = fast.load().config
    assert config.answer_options == {"activation": "sigmoid", "template": None, "top_k": 3}
    assert isinstance(config.exit_policy, TopK) and config.exit_policy.k == 3
    assert fast.evidence["guarantee"]["test"] == "betting" and fast.evidence["guarantee"]["top_k"] == 3
    assert (fast.folder / "report.html").is_file() and "text-ranking" in (fast.folder / "README.md").read_text()
    plain = offramp.AdaptiveModel.from_backbone(fast.folder.parent / "reranker", exits=[4], problem_type="ranking")
    for ranking in FRESH[:5]:
        full, expected = (model.rank(**ranking, policy="never") for model in (fast.load(), plain))
        assert [result["corpus_id"] for result in full] == [result["corpus_id"] for result in expected]


def write_table(file, rows) -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_predictions_of_files(fast, tmp_path, capsys):
    file = write_rankings(tmp_path / "queries.jsonl", FRESH[:6])
    lines = json_lines(capsys, "predict", fast.folder, file)
    for line, ranking in zip(lines, FRESH, strict=False):
        assert sorted(line["ranking"]) == list(range(len(ranking["documents"])))
        assert set(line) == {"ranking", "scores", "num_full", "exit_layer"}
        assert min(3, len(line["ranking"])) <= line["num_full"] <= len(line["ranking"]) == len(line["scores"])
    table = tmp_path / "pairs.csv"
    with table.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["query", "passage"])
        writer.writerows([ranking["query"], document] for ranking in FRESH[:6] for document in ranking["documents"])
    assert json_lines(capsys, "predict", fast.folder, table) == lines
    rows = list(csv.DictReader(table.open()))
    queries = list(dict.fromkeys(row["query"] for row in rows))
    write_table(table, [row | {"id": queries.index(row["query"])} for row in rows])
    with_ids = json_lines(capsys, "predict", fast.folder, table, "--with-text")
    assert [line["id"] for line in with_ids] == list(map(str, range(len(queries))))
    assert [line["documents"] for line in with_ids] == [ranking["documents"] for ranking in FRESH[:6]]
    write_table(table, [row | {"id": number} for number, row in enumerate(rows)])
    assert "different values in the column of ids" in fails(capsys, "predict", fast.folder, table, "--id-column", "id")
    for name in ("out.csv", "out.parquet"):
        assert main(["predict", str(fast.folder), str(file), "--output", str(tmp_path / name)]) == 0
    first = next(csv.DictReader((tmp_path / "out.csv").open()))
    assert [int(index) for index in first["ranking"].split(",")] == lines[0]["ranking"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "good", "documents": []}', "line 2: the query 'good' has no documents."),
        ('{"query": "good"}', "line 2: "),
        ('{"query": "good", "documents": "film"}', "line 2: the documents must be a list of strings, got 'film'."),
        ('{"query": "good", "documents": ["film", 3]}', "line 2: document 2 must be a string, got 3."),
    ],
)
def test_invalid_lines_are_named(fast, tmp_path, capsys, line, message):
    file = write_rankings(tmp_path / "queries.jsonl", FRESH[:1])
    file.write_text(file.read_text() + line + "\n")
    main(["predict", str(fast.folder), str(file), "--output", str(tmp_path / "out.jsonl")])
    assert message in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_evaluating_with_judgements(fast, tmp_path):
    judged = [ranking | {"relevance": [index % 3 for index in range(len(ranking["documents"]))]} for ranking in FRESH]
    file = write_rankings(tmp_path / "judged.jsonl", judged)
    result = offramp.evaluate(fast.folder, file, live=False, policy="top-k")
    chosen = result.results.chosen
    assert set(chosen.scores) == {"ndcg_at_10", "mrr_at_10"} and chosen.interval is not None
    assert (
        0 < chosen.agreement <= 1 and chosen.agreement_interval[0] <= chosen.agreement <= chosen.agreement_interval[1]
    )
    assert result.results.exits[-1].agreement == 1
    file.write_text(json.dumps(judged[0] | {"relevance": [1]}) + "\n")
    with pytest.raises(
        offramp.OfframpError, match=r"line 1: 'relevance' must have a grade for each of the \d+ documents"
    ):
        offramp.evaluate(fast.folder, file, live=False)


def test_calibrating_for_missing_documents_and_for_changed_queries(fast, tmp_path):
    fast.load()
    fresh = random_rankings(240, seed=5)
    missing = offramp.calibrate(fast.folder, fresh, risk=0.4, policy="top-k", ledger=tmp_path / "tests.jsonl")
    changed = offramp.calibrate(
        fast.folder, fresh, risk=0.6, policy="top-k", risk_type="changed", ledger=tmp_path / "tests.jsonl"
    )
    assert missing and missing.evidence["guarantee"]["test"] == "betting" and missing.evidence["search_rows"] == 60
    assert changed and changed.evidence["guarantee"]["test"] == "binomial"
    assert "at most 60 % of queries have another top 3 than with the full model" in changed.sentence
    few = offramp.calibrate(fast.folder, fresh[:30], risk=0.02, policy="top-k", ledger=tmp_path / "tests.jsonl")
    assert not few and "queries are too few to guarantee" in few.sentence


def test_too_few_queries_and_other_models_are_rejected(original, tmp_path, capsys):
    from tests.tiny import save_classifier

    file = write_rankings(tmp_path / "few.jsonl", RANKINGS[:20])
    err = fails(capsys, "adapt", original, file, "--output", tmp_path / "out")
    assert "different queries are too few" in err
    save_classifier("bert", tmp_path / "three", 3)
    capsys.readouterr()
    assert "has 3 outputs" in fails(capsys, "adapt", tmp_path / "three", file, "--output", tmp_path / "out")
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n" * 20)
    assert "give queries with lists of documents" in fails(capsys, "adapt", original, texts, "--output", tmp_path / "o")


def test_exported_is_torch(fast, tmp_path):
    model = offramp.AdaptiveModel.from_pretrained(fast.folder)
    model.save_pretrained(tmp_path / "model", exports=False)
    offramp.export(tmp_path / "model", backend="onnx", int8="none")
    exported, policy = offramp.load(tmp_path / "model", "onnx"), model.config.exit_policy
    for ranking in FRESH[:10]:
        results, expected = (runner.rank(**ranking, policy=policy) for runner in (exported, model.runner()))
        assert [result["corpus_id"] for result in results] == [result["corpus_id"] for result in expected]
        np.testing.assert_allclose(*([r["score"] for r in ranked] for ranked in (results, expected)), atol=1e-5)


def test_training_takes_the_first_documents_and_a_sample_of_the_others():
    from offramp.answers import RANKING

    examples = [("query", *(f"document {index}" for index in range(40)))] * 3
    for example in RANKING.training_examples(examples, 60, seed=0):
        assert len(example) == 21 and example[:11] == examples[0][:11] and len(set(example)) == 21
    assert RANKING.training_examples([("query", "only")], 60, seed=0) == [("query", "only")]


def test_a_query_is_timed_with_all_its_documents():
    documents = ["a document of some length " * 6] * 50
    assert len(timed_rows([("query", *documents)] * 400)) == 32
    assert len(timed_rows([("a text", "another text")] * 400)) == 400


def test_a_large_batch_holds_whole_queries(fast):
    runner = fast.load()
    (chunk,) = chunks(runner.encoder(), FRESH, 64, runner.device, progress=False, together=True)
    groups = [set(batch.group.tolist()) for batch in chunk.batches()]
    assert sum(map(len, groups)) == len(FRESH) and len(groups) > 1 and max(map(len, groups)) > 1


def test_rows_per_document_are_joined_with_the_id_of_their_query():
    table = Dataset.from_dict({"query": ["a", "a", "b"], "passage": ["x", "y", "z"], "id": [1, 2, 3]})
    data = resolve_input(table)
    assert list(data.read(RANKING_INPUTS)) == [("a", "x", "y"), ("b", "z")]
    with pytest.raises(BadInput, match="the rows of the query 'a' have different values in the column"):
        list(data.read_with_ids(RANKING_INPUTS, "id"))
    assert [row_id for row_id, _ in data.read_with_ids(RANKING_INPUTS, "id", required=False)] == [None, 3]
    table = Dataset.from_dict({"query": ["a", "a", "b"], "passage": ["x", "y", "z"], "user": ["u", "u", "v"]})
    rankings = [("a", "x", "y"), ("b", "z")]
    assert resolve_input(table).read_with_groups(RANKING_INPUTS, "user") == (rankings, ["u", "v"])


def test_plain_text_instead_of_queries_is_explained(fast, tmp_path, capsys):
    file = tmp_path / "queries.txt"
    file.write_text("a query\n")
    assert "each JSON line needs `query` and `documents`" in fails(capsys, "predict", fast.folder, file)
