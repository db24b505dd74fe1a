"""Make my reranker faster: adapt a cross-encoder, check its top k on new queries, rank documents with it.

    python examples/faster_reranker.py my-reranker rankings.jsonl --top-k 10 --risk 0.05 --backend onnx

`my-reranker` is a cross-encoder, such as a folder of sentence-transformers' `CrossEncoder`. A line of `rankings.jsonl`
is `{"query": …, "documents": […]}` with the candidates of your retriever. The last tenth of the queries is kept back to
check the result.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import offramp


def main() -> None:
    """Adapt, check, rank."""
    parser = argparse.ArgumentParser(description="Make a cross-encoder faster.")
    parser.add_argument("model", help="a cross-encoder")
    parser.add_argument("rankings", type=Path, help="queries with their candidate documents, as JSON lines")
    parser.add_argument("--output", default="fast-reranker", help="where the faster model is written")
    parser.add_argument("--top-k", type=int, default=10, help="number of documents that the guarantee is about")
    parser.add_argument("--risk", type=float, default=0.05, help="maximum fraction of the top k that is missing")
    parser.add_argument("--backend", default="torch", help="torch, onnx or openvino")
    options = parser.parse_args()

    rankings = [json.loads(line) for line in options.rankings.read_text("utf-8").splitlines() if line.strip()]
    held_out = len(rankings) // 10
    training, new = rankings[:-held_out], rankings[-held_out:]

    # 1. Train exits that imitate the reranker, choose a margin, test the guarantee.
    fast = offramp.adapt(
        options.model,
        training,
        output=options.output,
        top_k=options.top_k,
        risk=options.risk,
        backend=options.backend,
        overwrite=True,
    )
    if not fast:
        raise SystemExit(fast.reason)
    print(fast.guarantee)
    print(fast.measured)

    # 2. Compare it with the original on queries that `adapt` has not seen.
    runner, documents, full = fast.load(), 0, 0
    kept: list[float] = []
    for ranking in new:
        query, candidates = ranking["query"], ranking["documents"]
        results = runner.rank(query, candidates)
        expected = runner.rank(query, candidates, policy="never", top_k=options.top_k)
        top = {result["corpus_id"] for result in results[: options.top_k]}
        kept.append(sum(result["corpus_id"] in top for result in expected) / len(expected))
        documents += len(results)
        full += sum("estimated" not in result for result in results)
    print(f"On {len(new)} new queries: {sum(kept) / len(kept):.1%} of the top {options.top_k} are the same.")
    print(f"{full / documents:.0%} of the documents went through all layers.")

    # 3. Rank the documents of a query.
    query, candidates = new[0]["query"], new[0]["documents"]
    print(query)
    for result in runner.rank(query, candidates, top_k=3, return_documents=True):
        print(f"{result['score']:.3f}  {result['text'][:100]}")
    print(f"Report: {fast.report}")


if __name__ == "__main__":
    main()
