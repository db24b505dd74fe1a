"""Losses and features for the exits of a reranker: how few layers keep the full model's top k.

    python benchmarks/rerank_losses.py RERANKER RANKINGS [--only regression listwise …]

The encoder states of the first rankings train the heads, those of other rankings judge them. Each variant trains the
same heads from the same seed on the same states. Then the fewest layers are searched at which at most 2 % of the full
model's top k is missing on average, with at most three early exits. Records: results/rerank/losses/VARIANT.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offramp.answers import RANKING
from offramp.answers.ranking import Ranking, listwise
from offramp.answers.ranking_answers import relevance
from offramp.calibration.estimate_errors import fit_errors
from offramp.core.machine import cpu_name
from offramp.core.stepper import exit_points_on
from offramp.evaluation.traces.trace import Trace
from offramp.model.attach import ExitOptions
from offramp.policies.top_k import TopK
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import States, record_states
from offramp.training.imitation.teacher import short_name

RESULTS = Path(__file__).parent / "results" / "rerank" / "losses"
RISK, MARGINS = 0.02, np.geomspace(20, 0.01, 60)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores, the full model's scores, the query of each row


def regression(scores: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(scores, target)


def pairwise(scores: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """Return the mean squared error of the differences between documents of a query (margin MSE)."""
    _, group = torch.unique(group, return_inverse=True)
    sizes = torch.bincount(group).to(scores.dtype)
    residuals = scores - target
    means = torch.zeros_like(sizes).index_add(0, group, residuals) / sizes
    return (residuals - means[group]).square().mean()


def near_the_top(scores: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """Return the squared errors, weighted by the probability that a document is among the first 10 of its query."""
    weights = torch.empty_like(target)
    for query in sorted(set(group.tolist())):
        rows = (group == query).nonzero()[:, 0]
        values = target[rows]
        bound = values.topk(min(10, len(values))).values[-1]
        weights[rows] = torch.exp(-((values - bound) / values.std().clamp(min=1e-3)).abs())
    return ((scores - target).square() * weights).sum() / weights.sum()


VARIANTS: dict[str, Loss] = {
    "regression": regression,
    "regression + 0.5 listwise": lambda *rows: regression(*rows) + 0.5 * listwise(*rows),
    "regression + 2 listwise": lambda *rows: regression(*rows) + 2 * listwise(*rows),
    "listwise": lambda *rows: listwise(*rows),
    "pairwise": pairwise,
    "regression + pairwise": lambda *rows: regression(*rows) + pairwise(*rows),
    "regression near the top": lambda *rows: near_the_top(*rows) + 0.1 * regression(*rows),
}


class WithLoss(Ranking):
    """Rankings whose exits learn with another loss."""

    def __init__(self, loss: Loss):
        self.variant = loss

    def imitation_loss(self, logits: Tensor, teacher: Tensor, group: Tensor) -> Tensor:
        """Return the variant's loss."""
        return self.variant(relevance(logits), relevance(teacher), group)


def exit_logits(heads: Any, states: States) -> np.ndarray:
    """Return the outputs of all exits, the full model's last, (rows, exits, outputs)."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(states.lengths), 256):
            rows = np.arange(start, min(start + 256, len(states.lengths)))
            outputs = [
                head(head.features(state)) for head, state in zip(heads, states.encoder_states(rows), strict=True)
            ]
            parts.append(torch.stack([*outputs, states.teacher[rows].float()], 1).float().numpy())
    return np.concatenate(parts)


def trace_of(logits: np.ndarray, states: States, layers: list[int], top_k: int) -> Trace:
    """Return the outputs as a trace, rows of a query adjacent."""
    order = np.argsort(states.rows, kind="stable")
    model = {
        "name": "states",
        "fingerprint": "",
        "depth": layers[-1],
        "layers": layers,
        "labels": ["relevant"] if logits.shape[-1] == 1 else ["irrelevant", "relevant"],
        "problem": RANKING.name,
        "faithful": False,
        "max_length": 128,
        "parameters": 1,
        "options": {"activation": "identity", "template": None, "top_k": top_k},
    }
    about = {"offramp": "", "model": model, "machine": {}, "data": {"name": "states", "rows": len(order)}}
    costs, hashes = np.zeros(logits.shape[:2]), np.arange(len(order), dtype=np.uint64)
    _, group = np.unique(states.rows[order], return_inverse=True)
    return Trace(about, logits[order], costs, costs, states.lengths[order], hashes, group=group)


def fewest_layers(trace: Trace, top_k: int) -> dict[str, Any]:
    """Return the exits and the margin with the fewest layers among those that miss at most 2 % of the top k."""
    errors, layers = fit_errors(trace), trace.about["model"]["layers"]
    best: dict[str, Any] = {"layers": float(layers[-1]), "exits": []}
    for count in (1, 2, 3):
        for early in combinations(range(len(layers) - 1), count):
            kept = [*early, len(layers) - 1]
            model = trace.about["model"] | {"layers": [layers[index] for index in kept]}
            smaller = replace(trace, about=trace.about | {"model": model}, logits=trace.logits[:, kept])
            chosen = tuple(errors[index] for index in early)
            low, high = 0, len(MARGINS)
            while low < high:
                middle = (low + high) // 2
                replayed = smaller.replay(TopK(top_k, float(MARGINS[middle]), chosen))
                if RANKING.changes(replayed.answers, smaller.full).mean() <= RISK:
                    low = middle + 1
                    if replayed.layer.mean() < best["layers"]:
                        exits = [layers[index] for index in early]
                        best = {"layers": float(replayed.layer.mean()), "exits": exits}
                else:
                    high = middle
    return best


def recorded(args: argparse.Namespace, model: Any) -> tuple[States, States]:
    """Return the states of the training and of the other rankings."""
    rankings = [json.loads(line) for line in args.rankings.read_text("utf-8").splitlines()]
    examples = [(ranking["query"], *ranking["documents"]) for ranking in rankings]
    shown, others = args.training, args.training + args.judging
    parts = [RANKING.training_examples(examples[:shown], args.rows, 42), examples[shown:others]]
    folders = [args.work / name for name in ("training", "judging")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    training, judging = (record_states(model, part, folder) for part, folder in zip(parts, folders, strict=True))
    return training, judging


def main() -> None:
    """Measure the variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reranker")
    parser.add_argument("rankings", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the states (several GB)")
    parser.add_argument("--exits", default="0,1,2,3,4,6,8")
    parser.add_argument("--training", type=int, default=300, help="rankings that train the exits")
    parser.add_argument("--rows", type=int, default=9000, help="rows of these rankings")
    parser.add_argument("--judging", type=int, default=120, help="other rankings that judge them")
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    losses = [name for name in VARIANTS if not args.only or name in args.only]
    losses = [name for name in losses if not record_of(args.reranker, name).is_file()]
    layers = [int(layer) for layer in args.exits.split(",")]
    options = ExitOptions(layers, "attention", problem_type="ranking", convolution=128)

    def fresh() -> Any:
        torch.manual_seed(42)
        model = load_with_new_exits(args.reranker, options)
        model.config.max_tokens = 128
        return model

    states = recorded(args, fresh()) if losses else None
    for name in losses:
        assert states is not None
        training, judging = states
        model, start = fresh(), time.process_time()
        heads = [model.exits.at(point) for point in model.exits.points[:-1]]
        imitate(heads, training, WithLoss(VARIANTS[name]), ImitationOptions(args.epochs))
        seconds = time.process_time() - start
        depths = [point.layer for point in exit_points_on([*layers, model.config.num_layers])]
        logits = exit_logits(heads, judging)
        traces = {top_k: trace_of(logits, judging, depths, top_k) for top_k in (1, 5, 10)}
        errors = fit_errors(traces[10])
        record = {
            "variant": name,
            "model": short_name(args.reranker),
            "depth": depths[-1],
            "training_rankings": args.training,
            "training_rows": len(training.lengths),
            "judging_rankings": args.judging,
            "risk": RISK,
            "fewest_layers": {str(top_k): fewest_layers(trace, top_k) for top_k, trace in traces.items()},
            "errors": dict(zip(map(str, depths), errors, strict=False)),
            "spread": float(np.std(relevance(traces[10].logits[:, -1]))),
            "seconds": round(seconds, 1),
            "date": date.today().isoformat(),
            "cpu": cpu_name(),
        }
        record_of(args.reranker, name).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        fewest = {top_k: entry["layers"] for top_k, entry in record["fewest_layers"].items()}
        print(f"{name}: {fewest}, errors {errors}, {seconds:.0f} s", flush=True)
    shutil.rmtree(args.work, ignore_errors=True)


def record_of(reranker: str, variant: str) -> Path:
    """Return the file of a record."""
    return RESULTS / f"{short_name(reranker)} {variant.replace(' + ', ' and ')}.json".replace(" ", "-")


if __name__ == "__main__":
    main()
