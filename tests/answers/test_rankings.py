"""Rankings: equal to sentence-transformers at full depth, and independent of batches, neighbours and files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import offramp
from offramp import AdaptiveModel
from offramp.adaptation.texts import unlabelled_rows
from offramp.answers import RANKING
from offramp.answers.ranking import listwise
from offramp.answers.ranking_answers import missing_fraction
from offramp.answers.ranking_scores import ndcg, reciprocal_rank
from offramp.calibration.estimate_errors import fit_errors
from offramp.core.loop import run
from offramp.core.parts import PartStepper
from offramp.errors import BadInput, BadModel, BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.policies import TopK
from offramp.policies.top_k import kth_best
from tests.rankings import IDENTITY, SIGMOID, random_rankings, reranker, save_reranker
from tests.tiny import save_classifier

RANKINGS = random_rankings(8, seed=3)
POLICY = TopK(3, 0.5, (0.4, 0.3, 0.2, 0.1))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return reranker(tmp_path_factory.mktemp("reranker"))


def score(logits: torch.Tensor, activation: str | None) -> list[float]:
    """Return the scores of the plain model's logits."""
    if logits.shape[1] == 2:
        return torch.softmax(logits, -1)[:, 1].tolist()
    return (logits[:, 0] if activation == IDENTITY else torch.sigmoid(logits[:, 0])).tolist()


def assert_same_ranking(results, expected) -> None:
    assert [result["corpus_id"] for result in results] == [result["corpus_id"] for result in expected]
    scores = [[result["score"] for result in ranking] for ranking in (results, expected)]
    np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.parametrize(("outputs", "activation"), [(1, SIGMOID), (1, IDENTITY), (1, None), (2, None)])
def test_never_is_the_plain_model(tmp_path, outputs, activation):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = save_reranker(tmp_path, outputs=outputs, activation=activation)
    plain, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model = AdaptiveModel.from_backbone(folder, exits="auto", heads="attention", problem_type="ranking")
    for ranking in RANKINGS:
        query, documents = ranking["query"], ranking["documents"]
        inputs = tokenizer([query] * len(documents), documents, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            scores = score(plain(**inputs).logits, activation)
        expected = sorted(({"corpus_id": i, "score": s} for i, s in enumerate(scores)), key=lambda r: -r["score"])
        assert_same_ranking(model.rank(query, documents), expected)


@pytest.mark.parametrize("activation", [SIGMOID, IDENTITY])
def test_never_is_the_cross_encoder_of_sentence_transformers(tmp_path, activation):
    from sentence_transformers import CrossEncoder

    plain = CrossEncoder(str(save_reranker(tmp_path / "plain", activation=activation)))
    plain.save_pretrained(str(tmp_path / "saved"))
    for folder in (tmp_path / "plain", tmp_path / "saved"):  # written by hand, and by the library
        model = AdaptiveModel.from_backbone(folder, exits="auto", heads="attention", problem_type="ranking")
        for ranking in RANKINGS:
            for options in ({}, {"top_k": 3, "return_documents": True}):
                results, expected = model.rank(**ranking, **options), plain.rank(**ranking, **options)
                assert_same_ranking(results, expected)
                assert [set(result) for result in results] == [set(result) for result in expected]


def test_the_output_that_means_relevant_is_found_by_its_name(tmp_path):
    folder = save_reranker(tmp_path, outputs=2)
    scores = [result["score"] for result in reranker_of(folder).rank("a film", ["good", "bad film"])]
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {0: "relevant", 1: "irrelevant"}
    (folder / "config.json").write_text(json.dumps(config))
    other = [result["score"] for result in reranker_of(folder).rank("a film", ["good", "bad film"])]
    np.testing.assert_allclose(sorted(scores), sorted(1 - value for value in other), atol=1e-6)


def reranker_of(folder):
    return AdaptiveModel.from_backbone(folder, exits=[2], problem_type="ranking")


@pytest.mark.parametrize("labels", [("World", "Sports"), ("negative", "positive")])
def test_a_classifier_that_is_no_reranker_is_rejected(tmp_path, labels):
    folder = save_classifier("bert", tmp_path, 2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": dict(enumerate(labels))}))
    with pytest.raises(BadModel, match="not clear which of them means relevant"):
        reranker_of(folder)


def test_three_outputs_are_rejected(tmp_path):
    with pytest.raises(BadModel, match=r"has 3 outputs .*; a reranker has one output, or two"):
        reranker_of(save_classifier("bert", tmp_path, 3))


def layers(answers) -> list[list[int]]:
    return [sorted(zip(answer.ranking, answer.document_layers, strict=True)) for answer in answers]


def test_a_querys_ranking_does_not_depend_on_other_queries_or_the_batch(model):
    together = list(model.predict(RANKINGS, policy=POLICY))
    assert len({layer for answer in together for layer in answer.document_layers}) > 2
    for budget in (1, 60, 5000):
        again = list(model.predict(RANKINGS, policy=POLICY, batch_tokens=budget))
        assert layers(again) == layers(together)
    for ranking, answer in zip(RANKINGS, together, strict=True):
        (alone,) = model.predict([ranking], policy=POLICY)
        assert alone.ranking == answer.ranking and alone.document_layers == answer.document_layers
        np.testing.assert_allclose(alone.document_scores, answer.document_scores, atol=1e-5)


def test_documents_that_reach_the_end_have_the_full_score_and_come_first(model):
    full = list(model.predict(RANKINGS))
    for answer, expected in zip(model.predict(RANKINGS, policy=POLICY), full, strict=True):
        assert answer.num_full >= min(3, len(answer.ranking))
        scores = dict(zip(expected.ranking, expected.document_scores, strict=True))
        for index, value in list(zip(answer.ranking, answer.document_scores, strict=True))[: answer.num_full]:
            assert value == pytest.approx(scores[index], abs=1e-5)
        assert answer.document_layers[: answer.num_full] == [4] * answer.num_full
        assert all(layer < 4 for layer in answer.document_layers[answer.num_full :])
    estimated = [result for ranking in RANKINGS for result in model.rank(**ranking, policy=POLICY)]
    assert {result.get("estimated") for result in estimated} == {None, True}


def test_replayed_is_live(model, tmp_path):
    rankings = [(ranking["query"], *dict.fromkeys(ranking["documents"])) for ranking in random_rankings(40, seed=7)]
    data = unlabelled_rows(model.config, rankings, "rankings")
    trace = obtain_trace(model.runner(), data, tmp_path / "trace.safetensors")
    assert len(trace) == len(rankings) and trace.rows == sum(len(ranking) - 1 for ranking in rankings)
    estimates, errors = np.asarray(trace.logits)[:, :-1, 0], fit_errors(trace)
    for k in (1, 3):
        settings = [TopK(k, float(margin), errors) for margin in np.linspace(0.1, 1.0, 41)]
        policy = max(settings, key=gap_in(trace, estimates))
        live, replayed = model.runner().answer(rankings, policy=policy), trace.replay(policy)
        layers = [dict(zip(order, row, strict=True)) for order, row in zip(live.orders, live.layers, strict=True)]
        assert [row[index] for row in layers for index in range(len(row))] == replayed.layer.tolist()
        np.testing.assert_array_equal(replayed.answers, live.values)
        assert len(set(replayed.layer.tolist())) > 2
        part = trace.take(np.array([3, 7, 20]))
        np.testing.assert_array_equal(part.replay(policy).answers[:, 1], replayed.answers[[3, 7, 20], 1])


def gap_in(trace, estimates):
    """Return a function from a policy to the least distance of a score from its bound: compaction shifts floats."""

    def gap(policy):
        exits, group = trace.replay(policy).exit, torch.from_numpy(np.array(trace.group))
        distances = []
        for index in range(estimates.shape[1]):
            rows = torch.from_numpy(np.flatnonzero(exits > index))
            scores = torch.from_numpy(estimates[:, index])[rows]
            bounds = kth_best(scores, group[rows], policy.k) - policy.threshold * policy.errors[index]
            distances.append((scores - bounds).abs().min())
        return float(min(distances))

    return gap


def test_a_larger_top_k_keeps_more_documents(model):
    ranking = max(RANKINGS, key=lambda ranking: len(ranking["documents"]))
    results = model.rank(**ranking, policy=TopK(1, 0.0, (0.1,) * 4), top_k=6)
    assert len(results) == 6 and not any("estimated" in result for result in results)
    everything = model.rank(**ranking, policy=POLICY, top_k=1000)
    assert len(everything) == len(ranking["documents"]) and not any("estimated" in result for result in everything)


def test_saved_is_loaded(model, tmp_path):
    model.config.policy = POLICY.to_dict()
    model.save_pretrained(tmp_path)
    model.config.policy = {"name": "never"}
    loaded = AdaptiveModel.from_pretrained(tmp_path)
    assert loaded.config.answer_options == model.config.answer_options
    answers = [list(offramp.load(tmp_path).predict(RANKINGS)), list(model.predict(RANKINGS, policy=POLICY))]
    assert [answer.ranking for answer in answers[0]] == [answer.ranking for answer in answers[1]]


def test_a_template_is_one_text(tmp_path):
    save_reranker(tmp_path)
    options = {"template": "the query {query} in it {document} was {document}"}
    model = AdaptiveModel.from_backbone(tmp_path, exits=[4], problem_type="ranking", answer_options=options)
    plain = AdaptiveModel.from_backbone(tmp_path, exits=[4], problem_type="regression")
    (answer,) = plain.predict(["the query good {document} in it bad was bad"])
    (result,) = model.rank("good {document}", ["bad"])
    assert result["score"] == pytest.approx(1 / (1 + np.exp(-answer.score)), abs=1e-6)
    with pytest.raises(BadModel, match=r"must contain \{query\} once and \{document\}"):
        AdaptiveModel.from_backbone(
            tmp_path, exits=[4], problem_type="ranking", answer_options={"template": "no {query}"}
        )


# -- input ---------------------------------------------------------------------------------------------


def test_no_documents_one_duplicates_and_empty_texts(model):
    assert model.rank("good", []) == []
    assert [result["corpus_id"] for result in model.rank("good", ["film"], policy=POLICY)] == [0]
    copies = model.rank("good", ["a film", "a film", "a film", "bad"], policy="never")
    positions = [result["corpus_id"] for result in copies if result["corpus_id"] < 3]
    assert positions == [0, 1, 2]
    assert len(model.rank("", ["", "a film"], policy=POLICY)) == 2
    for documents in ("a film", None):
        with pytest.raises(BadInput, match="`documents` must be a list of texts, got"):
            model.rank("good", documents)
    with pytest.raises(BadInput, match="Row 2: the query 'good' has no documents"):
        list(model.predict([("good", ["film"]), ("good", [])]))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"query": "good"}, "`documents` is missing"),
        ({"query": 3, "documents": ["a"]}, "the query must be a string, got 3"),
        ({"query": "good", "documents": "a film"}, "the documents must be a list of strings"),
        ({"query": "good", "documents": ["a", None]}, "document 2 must be a string, got None"),
        ("good", "expected a query with documents"),
    ],
)
def test_invalid_rankings_name_the_row(model, example, message):
    with pytest.raises(BadInput, match=f"^Row 1: .*{message}"):
        list(model.predict([example]))


def test_long_documents_are_truncated_as_the_model_does_and_counted(model, caplog):
    long = " ".join(["film"] * 100)
    list(model.predict([("good", [long, "bad", long]), ("good", ["bad"])]))
    assert "1 of 2 queries has documents that are truncated, to 38 tokens per pair" in caplog.text
    same, other = model.rank("good", [long, long + " bad"])
    assert same["score"] == other["score"]


def test_other_models_and_policies_do_not_fit(model, tmp_path):
    for policy in ("entropy:0.2", "confidence:0.9", "patience:2", "vote:2", "risk:0.1", "top-k:3:1"):
        with pytest.raises(BadValue):
            model.rank("good", ["film"], policy=policy)
    classifier = AdaptiveModel.from_backbone(save_classifier("bert", tmp_path, 2))
    with pytest.raises(BadModel, match="not for rankings"):
        classifier.rank("good", ["film"])
    with pytest.raises(BadValue, match="top-k' is for rankings"):
        list(classifier.predict(["film"], policy=TopK(1, 1.0, (1.0,) * 3)))
    with pytest.raises(BadValue, match="`top_k` must be a positive integer"):
        model.rank("good", ["film"], top_k=0)


# -- parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part_tokens", [1, 40, 100])
def test_a_batch_runs_the_same_in_parts(model, part_tokens):
    chunk = next(iter(model.runner().chunks(RANKINGS, progress=False, together=True)))
    for batch in chunk.batches():
        with torch.no_grad():
            whole, parts = (run(stepper, batch, POLICY) for stepper in (model.stepper, divided(model, part_tokens)))
        assert whole.exit.tolist() == parts.exit.tolist() and len(set(whole.exit.tolist())) > 2
        torch.testing.assert_close(whole.logits, parts.logits, atol=1e-5, rtol=1e-5)


def divided(model, part_tokens):
    return PartStepper(model.stepper, part_tokens)


def test_the_kth_best_of_each_group():
    scores = torch.tensor([5.0, 1.0, 3.0, 2.0, 9.0, 9.0, 7.0])
    group = torch.tensor([4, 4, 4, 1, 1, 1, 0])
    assert kth_best(scores, group, 2).tolist() == [3.0, 3.0, 3.0, 9.0, 9.0, 9.0, 7.0]
    assert kth_best(scores, group, 9).tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 7.0]


def test_what_is_missing_at_the_top():
    expected = np.array([[2, 0, 1, 2, 3], [2, 0, 1, 2, 3], [2, 0, 1, 2, 3], [2, 0, -1, -1, -1]])
    orders = np.array([[2, 1, 0, 3, 2], [2, 1, 3, 0, 2], [2, 3, 2, 1, 0], [2, 0, -1, -1, -1]])
    assert missing_fraction(orders, expected).tolist() == [0, 0.5, 1, 0]
    assert RANKING.differ(orders, expected).tolist() == [False, True, True, False]


def test_ndcg_and_reciprocal_rank():
    orders = np.array([[10, 2, 0, 1], [10, 0, 1, 2], [10, 1, 0, -1]])
    grades = RANKING.label_array([[1, 0, 0], [3, 2, 1], [0, 0]])
    assert ndcg(orders, grades) == pytest.approx([1 / np.log2(3), 1, 0])
    assert reciprocal_rank(orders, grades) == pytest.approx([0.5, 1, 0])


def test_the_listwise_loss_is_the_divergence_of_each_querys_softmax():
    generator = torch.Generator().manual_seed(0)
    scores, target = (torch.randn(7, generator=generator) for _ in range(2))
    group = torch.tensor([5, 5, 5, 2, 2, 2, 2])
    expected = [
        (
            torch.softmax(target[rows], 0) * (torch.log_softmax(target[rows], 0) - torch.log_softmax(scores[rows], 0))
        ).sum()
        for rows in (group == 5, group == 2)
    ]
    torch.testing.assert_close(listwise(scores, target, group), torch.stack(expected).mean())
