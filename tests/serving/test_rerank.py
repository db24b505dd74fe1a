"""Rankings over HTTP, in the formats of text-embeddings-inference, Cohere, Jina and vLLM."""

from __future__ import annotations

import pytest

from offramp.policies import TopK
from tests.rankings import random_rankings, reranker
from tests.server import post as post_body
from tests.server import run_server

RANKING = max(random_rankings(20, seed=3), key=lambda ranking: len(ranking["documents"]))
QUERY, DOCUMENTS = RANKING["query"], RANKING["documents"]
POLICY = TopK(3, 0.2, (0.4, 0.3, 0.2, 0.1))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("reranker")
    model = reranker(root / "plain")
    model.config.policy = POLICY.to_dict()
    model.save_pretrained(root / "model")
    model.name_or_path = str(root / "model")
    return model


@pytest.fixture(scope="module")
def server(model):
    with run_server(model.name_or_path) as running:
        yield running


def post(server, path: str, body: dict):
    status, _, answer = post_body(f"{server.url}{path}", body)
    return status, answer


def test_rerank_as_text_embeddings_inference(server, model):
    expected = model.rank(QUERY, DOCUMENTS)
    status, results = post(server, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    assert status == 200 and [result["index"] for result in results] == [entry["corpus_id"] for entry in expected]
    assert [result["text"] for result in results] == [DOCUMENTS[entry["corpus_id"]] for entry in expected]
    assert [result["score"] for result in results] == pytest.approx([entry["score"] for entry in expected], abs=1e-5)
    raw = post(server, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True})[1]
    assert raw[0]["score"] != pytest.approx(results[0]["score"]) and set(raw[0]) == {"index", "score"}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_as_cohere_and_jina(server, model, path):
    documents = [DOCUMENTS[0], *({"text": document} for document in DOCUMENTS[1:])]
    body = {"query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}
    status, answer = post(server, path, body)
    expected = model.rank(QUERY, DOCUMENTS, top_k=2)
    assert status == 200 and [result["index"] for result in answer["results"]] == [e["corpus_id"] for e in expected]
    assert answer["results"][0]["document"] == {"text": DOCUMENTS[expected[0]["corpus_id"]]}
    assert answer["usage"]["total_tokens"] > 0 and answer["id"] and answer["meta"]
    everything = post(server, path, {"query": QUERY, "documents": DOCUMENTS})[1]["results"]
    assert len(everything) == len(DOCUMENTS) and any(result.get("estimated") for result in everything)
    more = post(server, path, {"query": QUERY, "documents": DOCUMENTS, "top_n": len(DOCUMENTS)})[1]["results"]
    assert not any(result.get("estimated") for result in more)


def test_scores_as_vllm_are_those_of_the_full_model(server, model):
    full = {entry["corpus_id"]: entry["score"] for entry in model.rank(QUERY, DOCUMENTS, policy="never")}
    status, answer = post(server, "/score", {"text_1": QUERY, "text_2": DOCUMENTS})
    scores = [entry["score"] for entry in answer["data"]]
    assert status == 200 and scores == pytest.approx([full[index] for index in range(len(full))], abs=1e-5)
    pairs = post(server, "/score", {"text_1": [QUERY] * 2, "text_2": DOCUMENTS[:2]})[1]["data"]
    assert [entry["score"] for entry in pairs] == pytest.approx([full[0], full[1]], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": QUERY, "texts": []}),
        ("/rerank", {"query": QUERY}),
        ("/v1/rerank", {"query": QUERY, "documents": [3]}),
        ("/v2/rerank", {"query": QUERY, "documents": ["a"], "top_n": 0}),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        ("/rerank", {"query": QUERY, "texts": ["a"] * 1001}),
    ],
)
def test_invalid_requests_are_rejected(server, path, body):
    status, answer = post(server, path, body)
    assert 400 <= status < 500 and "error" in str(answer)
