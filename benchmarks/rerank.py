"""Rerank with early exits, at full depth, and fewer candidates at full depth: overlap of the top k against time.

    python benchmarks/rerank.py FAST RANKINGS [--backend onnx] [--json results/rerank/other_data/cisi.json]

FAST is a reranker that `offramp adapt` made, RANKINGS a file of queries that neither its training nor its adaptation
used; `relevant` holds judgements, if any. The documents are in the order of the first-stage retriever, so the rival is
to rerank only the first n of them. All contestants run in one process, in turns, query by query, tokenization included.
Overlap is measured against the full model in float32 on all candidates; milliseconds are CPU time, the median over
queries of the least of `--rounds` rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import offramp
from offramp.answers import RANKING
from offramp.answers.ranking_scores import ndcg, reciprocal_rank
from offramp.core.machine import cpu_name
from offramp.policies import Policy, TopK

Ranker = Callable[[str, list[str]], list[dict[str, Any]]]


def rank(
    runner: offramp.Runner, policy: str | Policy, count: int, query: str, documents: list[str]
) -> list[dict[str, Any]]:
    """Rank the first `count` documents."""
    return runner.rank(query, documents[:count], policy=policy)


def contestants(runner: offramp.Runner, candidates: int, factors: list[float]) -> dict[str, Ranker]:
    """Return functions from a query and its documents to results, by name."""
    policy = runner.config.exit_policy
    assert isinstance(policy, TopK), "the model has no early exits"
    rankers: dict[str, Ranker] = {
        f"full depth, {runner.dtype}": partial(rank, runner, "never", candidates),
        "early exits, guaranteed": partial(rank, runner, policy, candidates),
    }
    for factor in factors:
        setting = TopK(policy.k, policy.threshold * factor, policy.errors)
        rankers[f"early exits, margin × {factor:g}"] = partial(rank, runner, setting, candidates)
    for count in sorted({max(policy.k, round(candidates * share)) for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)}):
        rankers[f"only the first {count}"] = partial(rank, runner, "never", count)
    return rankers


def overlap(results: list[dict[str, Any]], expected: list[dict[str, Any]], top_k: int) -> float:
    """Return the fraction of the expected top k among the first k results."""
    top = {entry["corpus_id"] for entry in expected[:top_k]}
    return len(top & {entry["corpus_id"] for entry in results[:top_k]}) / len(top)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return overlap, quality and milliseconds of all contestants."""
    lines = args.rankings.read_text("utf-8").splitlines()[: args.limit]
    rankings = [json.loads(line) for line in lines]
    runner = offramp.load(args.model, args.backend, threads=1)
    full = offramp.load(args.model, "torch", threads=1)
    top_k = int(runner.config.exit_policy.to_dict()["k"])
    candidates = max(len(ranking["documents"]) for ranking in rankings)
    rankers = contestants(runner, candidates, args.factors)
    seconds = {name: np.full((len(rankings), args.rounds), np.inf) for name in rankers}
    overlaps: dict[str, list[float]] = {name: [] for name in rankers}
    orders: dict[str, list[list[int]]] = {name: [] for name in rankers}
    for row, ranking in enumerate(rankings):
        query, documents = ranking["query"], ranking["documents"]
        expected = full.rank(query, documents, policy="never")
        for turn in range(args.rounds):
            for name, ranker in rankers.items():
                start = time.process_time()
                results = ranker(query, documents)
                seconds[name][row, turn] = time.process_time() - start
                if turn == 0:
                    overlaps[name].append(overlap(results, expected, top_k))
                    orders[name].append([entry["corpus_id"] for entry in results])
    layers = np.concatenate(runner.answer(rankings, quiet=True).layers)
    table = []
    for name in rankers:
        entry = {
            "name": name,
            "overlap": round(float(np.mean(overlaps[name])), 4),
            "milliseconds": round(1000 * float(np.median(seconds[name].min(1))), 2),
        }
        table.append(entry | quality(orders[name], rankings, top_k))
    return {
        "date": date.today().isoformat(),
        "machine": cpu_name(),
        "model": Path(args.model).name,
        "queries": len(rankings),
        "candidates": candidates,
        "top_k": top_k,
        "guarantee": (runner.config.calibrated or {}).get("sentence"),
        "speedup_in_layers": round(runner.config.num_layers / float(layers.mean()), 2),
        "contestants": table,
    }


def quality(orders: list[list[int]], rankings: list[dict[str, Any]], top_k: int) -> dict[str, float]:
    """Return nDCG@10 and the reciprocal rank, if there are judgements."""
    if not all("relevant" in ranking for ranking in rankings):
        return {}
    grades = RANKING.label_array([ranking["relevant"] for ranking in rankings])
    values = np.full((len(orders), 1 + max(map(len, orders))), -1)
    values[:, 0] = top_k
    for row, order in zip(values, orders, strict=True):
        row[1 : 1 + len(order)] = order
    scores = {"ndcg_at_10": ndcg(values, grades), "mrr_at_10": reciprocal_rank(values, grades)}
    return {name: round(float(value.mean()), 4) for name, value in scores.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rankings", type=Path)
    parser.add_argument("--backend")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--factors", type=float, nargs="*", default=[0.5, 2.0], help="of the guaranteed margin")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = measure(args)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(results["guarantee"])
    print(f"{results['queries']} queries, {results['candidates']} candidates, overlap@{results['top_k']}, ms per query")
    for entry in results["contestants"]:
        more = "".join(f"  {name} {entry[name]:.3f}" for name in ("ndcg_at_10", "mrr_at_10") if name in entry)
        print(f"{entry['name']:34} {entry['overlap']:.4f} {entry['milliseconds']:9.2f}{more}")


if __name__ == "__main__":
    main()
