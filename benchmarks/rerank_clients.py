"""Rerank clients of other projects against a real server, compared with `offramp` in this process.

    pip install cohere
    python benchmarks/rerank_clients.py RERANKER RANKINGS [--queries 20]

RERANKER is a model folder, RANKINGS a file of queries with documents. The clients are both versions of `cohere`'s.
Each must return the order of `offramp.load(RERANKER).rank`, and its scores up to 1e-4. The figures are saved in
results/rerank_clients.json.
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
Client = Callable[[str, list[str], int], list[tuple[int, float]]]


def cohere_clients(url: str) -> dict[str, Client]:
    """Return the clients of both versions of Cohere's API."""
    module: Any = import_module("cohere")

    def ranker(client: Any) -> Client:
        def rank(query: str, documents: list[str], top_n: int) -> list[tuple[int, float]]:
            response = client.rerank(model="model", query=query, documents=documents, top_n=top_n)
            return [(result.index, result.relevance_score) for result in response.results]

        return rank

    name = f"cohere {version('cohere')}"
    return {
        f"{name}, Client": ranker(module.Client(api_key="none", base_url=url)),
        f"{name}, ClientV2": ranker(module.ClientV2(api_key="none", base_url=url)),
    }


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
    expected = [runner.rank(ranking["query"], ranking["documents"], top_k=args.top_n) for ranking in rankings]
    serve = [sys.executable, "-m", "offramp", "serve", args.model, "--port", "0"]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    clients = {}
    try:
        match = re.search(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        url = match[0]
        wait = ["curl", "--silent", "--fail", "--retry", "40", "--retry-all-errors", "--retry-delay", "1"]
        subprocess.run([*wait, f"{url}/ready"], check=True, stdout=subprocess.DEVNULL)
        for name, rank in cohere_clients(url).items():
            same, largest = 0, 0.0
            for ranking, results in zip(rankings, expected, strict=True):
                answers = rank(ranking["query"], ranking["documents"], args.top_n)
                same += [index for index, _ in answers] == [result["corpus_id"] for result in results]
                differences = (abs(a[1] - b["score"]) for a, b in zip(answers, results, strict=True))
                largest = max(largest, *differences)
            clients[name] = {"queries": len(rankings), "same_order": same, "largest_difference": largest}
            print(f"{name}: {json.dumps(clients[name])}", flush=True)
    finally:
        server.terminate()
        server.wait()
    record = {"date": f"{date.today()}", "cpu": cpu_name(), "top_n": args.top_n, "clients": clients}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for name, client in clients.items():
        assert client["same_order"] == len(rankings) and client["largest_difference"] <= TOLERANCE, name


if __name__ == "__main__":
    main()
