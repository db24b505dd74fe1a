"""Server routes for rankings, compatible with existing clients.

The APIs of text-embeddings-inference (`/rerank`), Cohere and Jina (`/v1/rerank`, `/v2/rerank`) and vLLM (`/score`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, StrictBool, StrictStr

from offramp.answers.answer import Endpoint
from offramp.answers.request import Count, Layers, NonEmpty, RequestBody, RequestText, TooLarge
from offramp.errors import BadInput

__all__ = ["ROUTES"]

MAX_DOCUMENTS = 1000  # of a request


class RerankRequest(RequestBody):
    """`POST /rerank`, in the format of text-embeddings-inference."""

    query: RequestText
    texts: NonEmpty[RequestText]
    raw_scores: StrictBool = False
    return_text: StrictBool = False
    truncate: StrictBool | None = False
    max_layers: Layers | None = None


class RankedText(BaseModel):
    """A text of `/rerank`."""

    index: int
    score: float
    text: str | None = None


class Document(RequestBody):
    """A document with its text, in the format of Cohere."""

    text: RequestText


class RerankDocumentsRequest(RequestBody):
    """`POST /v1/rerank` and `/v2/rerank`, in the format of Cohere and Jina."""

    model: StrictStr | None = None
    query: RequestText
    documents: NonEmpty[RequestText | Document]
    top_n: Count | None = None
    return_documents: StrictBool = False


class ScoreRequest(RequestBody):
    """`POST /score`, in the format of vLLM: a query with texts, or as many first as second texts."""

    model: StrictStr | None = None
    text_1: RequestText | NonEmpty[RequestText]
    text_2: RequestText | NonEmpty[RequestText]


def _ranking(query: str, documents: Sequence[str]) -> tuple[str, ...]:
    if len(documents) > MAX_DOCUMENTS:
        raise TooLarge(f"The request has {len(documents):,} documents; the maximum is {MAX_DOCUMENTS:,}.")
    return query, *documents


def _documents(body: RerankDocumentsRequest) -> list[str]:
    return [document if isinstance(document, str) else document.text for document in body.documents]


def _score_examples(body: ScoreRequest) -> list[tuple[str, ...]]:
    """Return one ranking for a single first text; else a ranking of one document per pair."""
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(first) == 1:
        return [_ranking(first[0], second)]
    if len(first) != len(second):
        raise BadInput(f"`text_1` has {len(first)} texts and `text_2` has {len(second)}; the numbers must match.")
    return list(zip(first, second, strict=True))


# -- responses -----------------------------------------------------------------------------------------


def _rerank_reply(answers: Any, body: RerankRequest, request_info: Mapping[str, Any]) -> list[dict[str, Any]]:
    (answer,) = answers
    scores = answer.raw_scores if body.raw_scores else answer.document_scores
    return [
        {"index": index, "score": score} | ({"text": body.texts[index]} if body.return_text else {})
        for index, score in zip(answer.ranking, scores, strict=True)
    ]


def _rerank_documents_reply(
    answers: Any, body: RerankDocumentsRequest, request_info: Mapping[str, Any]
) -> dict[str, Any]:
    (answer,) = answers
    documents = _documents(body)
    results = []
    for result in answer.results(body.top_n):
        entry: dict[str, Any] = {"index": result["corpus_id"], "relevance_score": result["score"]}
        entry |= {"document": {"text": documents[result["corpus_id"]]}} if body.return_documents else {}
        results.append(entry | ({"estimated": True} if result.get("estimated") else {}))
    tokens = request_info["tokens"]
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": request_info["model"],
        "results": results,
        "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
        "meta": {"billed_units": {"search_units": 1}},
    }


def _score_reply(answers: Any, body: ScoreRequest, request_info: Mapping[str, Any]) -> dict[str, Any]:
    scores: list[float] = []
    for answer in answers:
        by_index = dict(zip(answer.ranking, answer.document_scores, strict=True))
        scores += [by_index[index] for index in range(len(by_index))]
    tokens = request_info["tokens"]
    return {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": request_info["model"],
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


ROUTES = (
    Endpoint(
        "/rerank",
        "Rank texts for a query (text-embeddings-inference)",
        RerankRequest,
        list[RankedText],
        lambda body: [_ranking(body.query, body.texts)],
        lambda body: {"max_layers": body.max_layers, "truncate": bool(body.truncate)},
        _rerank_reply,
    ),
    *(
        Endpoint(
            path,
            "Rank documents for a query (Cohere, Jina)",
            RerankDocumentsRequest,
            dict[str, Any],
            lambda body: [_ranking(body.query, _documents(body))],
            lambda body: {"truncate": True, "top_k": body.top_n},
            _rerank_documents_reply,
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Endpoint(
        "/score",
        "Score texts for a query with the full model (vLLM)",
        ScoreRequest,
        dict[str, Any],
        _score_examples,
        lambda body: {"truncate": True, "top_k": MAX_DOCUMENTS},
        _score_reply,
    ),
)
