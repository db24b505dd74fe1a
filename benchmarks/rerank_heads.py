"""What exits of a reranker know with and without an interaction of tokens, on the states of rerank_results.py.

    python benchmarks/rerank_results.py NAME RERANKER RANKINGS --work WORK --only states [--exits …]
    python benchmarks/rerank_heads.py RERANKER --work WORK --exits 0,1,2,3,4,5,6,8

The states of the training rankings train the heads of each variant from the same seed, those of the selection rankings
judge them. The record is results/rerank/heads.json.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.answers import RANKING
from offramp.core.machine import cpu_name
from offramp.model.attach import ExitOptions
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import States
from rerank_losses import exit_logits

RESULTS = Path(__file__).parent / "results" / "rerank" / "heads.json"
FIRST = (10, 15, 20, 30)


def load_states(folder: Path, exits: int, size: int, count: int, rows: int | None = None) -> States:
    """Return recorded states of the first rows, for the first `count` exits."""
    saved = np.load(folder / "rows.npz")
    shape = (int(saved["lengths"].sum()), exits, size)
    values: Any = np.memmap(folder / "states", np.float16, "r", shape=shape)
    teacher = torch.from_numpy(saved["teacher"])
    return States(values[:, :count], saved["lengths"][:rows], teacher[:rows], saved["rows"][:rows])


def knowledge(logits: np.ndarray, group: np.ndarray) -> list[dict[str, Any]]:
    """Return for each exit its error and the fraction of the full model's top 10 among its first documents."""
    scores, full = logits[:, :-1, 0], logits[:, -1, 0]
    queries, results = np.unique(group), list[dict[str, Any]]()
    for estimates in scores.T:
        residuals, overlaps = full - estimates, {first: list[float]() for first in FIRST}
        for query in queries:
            rows = np.flatnonzero(group == query)
            residuals[rows] -= residuals[rows].mean()
            top = np.argsort(-full[rows], kind="stable")[:10]
            order = np.argsort(-estimates[rows], kind="stable")
            for first, shares in overlaps.items():
                shares.append(float(np.isin(top, order[:first]).mean()))
        error = float(np.sqrt(np.mean(residuals**2)) / full.std())
        shares_of = {str(first): float(np.mean(shares)) for first, shares in overlaps.items()}
        results.append({"error": error, "top_10_among_first": shares_of})
    return results


def main() -> None:
    """Train and judge the variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reranker")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--exits", required=True, help="layers of the recorded exits")
    parser.add_argument("--deepest", type=int, default=4, help="deepest layer that is measured")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--rows", type=int, help="use only the first rows")
    parser.add_argument("--interactions", type=int, nargs="+", default=[0, 8])
    args = parser.parse_args()
    torch.set_num_threads(1)
    layers = [int(layer) for layer in args.exits.split(",")]
    measured = [layer for layer in layers if layer <= args.deepest]
    record: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "epochs": args.epochs}
    record |= {"layers": measured, "variants": {}}
    for interaction in args.interactions:
        torch.manual_seed(42)
        options = ExitOptions(layers, "attention", problem_type="ranking", convolution=128, interaction=interaction)
        model = load_with_new_exits(args.reranker, options)
        parts = [args.work / name for name in ("states", "states-selection")]
        sizes = (len(layers), model.config.hidden_size, len(measured))
        training, judging = (load_states(folder, *sizes, args.rows) for folder in parts)
        heads = [model.exits.at(point) for point in model.exits.points if point.layer in measured]
        start = time.process_time()
        imitate(heads, training, RANKING, ImitationOptions(args.epochs))
        seconds = time.process_time() - start
        logits: Tensor | np.ndarray = exit_logits(heads, judging)
        record |= {"training_rows": len(training.lengths), "queries": len(np.unique(judging.rows))}
        record["documents"] = round(len(judging.rows) / record["queries"])
        record["variants"][str(interaction)] = {
            "exits": knowledge(np.asarray(logits), judging.rows),
            "seconds": round(seconds, 1),
        }
        print(interaction, json.dumps(record["variants"][str(interaction)]), flush=True)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
