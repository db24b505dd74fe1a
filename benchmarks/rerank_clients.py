"""Rerank clients of other projects against a real server, compared with `offramp` in this process.

    pip install cohere langchain-cohere llama-index-postprocessor-cohere-rerank rerankers
    python benchmarks/rerank_clients.py RERANKER RANKINGS [--queries 20]

RERANKER is a model folder, RANKINGS a file of queries with documents. Each client must return the order of
`offramp.load(RERANKER).rank`, and its scores up to 1e-4. `rerankers` asks for all documents, the others for the first
--top-n. The record is results/rerank_clients.json; `write_serving.py` writes the page.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import offramp
from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "rerank_clients.json"
TOLERANCE = 1e-4
ALL = 1000  # documents: the full model's scores for all of them
Client = Callable[[str, list[str], int], list[tuple[int, float]]]


def cohere_clients(url: str, model: str) -> dict[str, Client]:
    """Return the clients of both versions of Cohere's API."""
    module: Any = import_module("cohere")

    def ranker(client: Any) -> Client:
        def rank(query: str, documents: list[str], top_n: int) -> list[tuple[int, float]]:
            response = client.rerank(model=model, query=query, documents=documents, top_n=top_n)
            return [(result.index, result.relevance_score) for result in response.results]

        return rank

    name = f"cohere {version('cohere')}"
    return {
        f"{name}, Client": ranker(module.Client(api_key="none", base_url=url)),
        f"{name}, ClientV2": ranker(module.ClientV2(api_key="none", base_url=url)),
    }


def langchain_client(url: str, model: str) -> dict[str, Client]:
    """Return LangChain's reranker."""
    module: Any = import_module("langchain_cohere")
    client = module.CohereRerank(cohere_api_key="none", base_url=url, model=model)

    def rank(query: str, documents: list[str], top_n: int) -> list[tuple[int, float]]:
        results = client.rerank(documents, query, top_n=top_n)
        return [(result["index"], result["relevance_score"]) for result in results]

    return {f"langchain-cohere {version('langchain-cohere')}, CohereRerank": rank}


def llama_index_client(url: str, model: str) -> dict[str, Client]:
    """Return LlamaIndex's reranker."""
    module: Any = import_module("llama_index.postprocessor.cohere_rerank")
    schema: Any = import_module("llama_index.core.schema")

    def rank(query: str, documents: list[str], top_n: int) -> list[tuple[int, float]]:
        client = module.CohereRerank(top_n=top_n, model=model, api_key="none", base_url=url, max_retries=1)
        nodes = [
            schema.NodeWithScore(node=schema.TextNode(text=document, id_=str(index)))
            for index, document in enumerate(documents)
        ]
        results = client.postprocess_nodes(nodes, query_str=query)
        return [(int(result.node.node_id), result.score) for result in results]

    package = "llama-index-postprocessor-cohere-rerank"
    return {f"{package} {version(package)}, CohereRerank": rank}


def rerankers_clients(url: str, model: str) -> dict[str, Client]:
    """Return the clients of `rerankers` for three servers; they always ask for all documents."""
    module: Any = import_module("rerankers.models.api_rankers")

    def ranker(provider: str, path: str) -> Client:
        client = module.APIRanker(model, "none", provider, url=f"{url}{path}")

        def rank(query: str, documents: list[str], top_n: int) -> list[tuple[int, float]]:
            results = client.rank(query, documents, doc_ids=list(range(len(documents)))).results
            return [(result.document.doc_id, result.score) for result in results]

        return rank

    paths = {"cohere": "/v1/rerank", "jina": "/v1/rerank", "text-embeddings-inference": "/rerank"}
    name = f"rerankers {version('rerankers')}"
    return {f"{name}, {provider}": ranker(provider, path) for provider, path in paths.items()}


def main() -> None:
    """Start the server and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rankings", type=Path)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--top-n", type=int, default=5)
    args = parser.parse_args()
    rankings = [json.loads(line) for line in args.rankings.read_text("utf-8").splitlines()[: args.queries]]
    runner = offramp.load(args.model)
    expected = {
        top_k: [runner.rank(ranking["query"], ranking["documents"], top_k=top_k) for ranking in rankings]
        for top_k in (args.top_n, ALL, None)
    }
    serve = [sys.executable, "-m", "offramp", "serve", args.model, "--port", "0"]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    clients = {}
    try:
        match = re.search(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        url = match[0]
        wait = ["curl", "--silent", "--fail", "--retry", "40", "--retry-all-errors", "--retry-delay", "1"]
        subprocess.run([*wait, f"{url}/ready"], check=True, stdout=subprocess.DEVNULL)
        named = Path(args.model).name
        makers = (cohere_clients, langchain_client, llama_index_client, rerankers_clients)
        for name, rank in {name: rank for make in makers for name, rank in make(url, named).items()}.items():
            same, largest = 0, 0.0
            top_k = args.top_n if "rerankers" not in name else None if "inference" in name else ALL
            for ranking, results in zip(rankings, expected[top_k], strict=True):
                answers = rank(ranking["query"], ranking["documents"], args.top_n)
                same += [index for index, _ in answers] == [result["corpus_id"] for result in results]
                differences = (abs(a[1] - b["score"]) for a, b in zip(answers, results, strict=True))
                largest = max(largest, *differences)
            clients[name] = {"queries": len(rankings), "same_order": same, "largest_difference": largest}
            print(f"{name}: {json.dumps(clients[name])}", flush=True)
    finally:
        server.terminate()
        server.wait()
    about = {"date": f"{date.today()}", "cpu": cpu_name(), "model": Path(args.model).name}
    record = about | {"top_n": args.top_n, "clients": clients}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for name, client in clients.items():
        assert client["same_order"] == len(rankings) and client["largest_difference"] <= TOLERANCE, name


if __name__ == "__main__":
    main()
