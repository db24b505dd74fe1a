"""Draw the papers' pictures from our own runs: RomeBERT's curves, PABEE's table, and ElasticBERT's ELUE score.

    python benchmarks/papers.py [--models DIR --data DIR --work DIR [--only minilm-rte]]

With the folders of training_results.py, missing runs are trained first; interrupted ones are resumed. Writes
docs/results/papers.md and its figure from the records and traces in benchmarks/results/training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import transformers

from offramp.data.tasks import TASKS
from offramp.model.config import AdaptiveConfig
from offramp.originals.elue import elue_score, flops_per_exit
from offramp.policies import Entropy, Patience, Policy
from offramp.report.figures import COLORS
from trained_runs import Trained, table
from training_results import MINILM_RECIPES, RESULTS, elue, minilm, small, train

plt.switch_backend("Agg")
plt.rcParams["svg.hashsalt"] = "offramp"  # the same figure is the same file
DOCS = Path(__file__).parent.parent / "docs"
PATIENCE = range(1, 6)
CURVES = {"deebert": "DeeBERT", "deebert-sd": "DeeBERT + SD", "romebert-sd-gr": "RomeBERT"}
CURVE_RUNS = {
    "SST-2": [minilm(recipe) for recipe in CURVES],
    "RTE": [small("rte", recipe, 42) for recipe in CURVES],
    "MRPC": [small("mrpc", recipe, 42) for recipe in CURVES],
}
PABEE_RUNS = {
    "SST-2": minilm("pabee"),
    "STS-B": small("sts-b", "pabee", 42),
    "RTE": small("rte", "pabee", 42),
    "MRPC": small("mrpc", "pabee", 42),
}
ELUE_STATIC, ELUE_DYNAMIC = [elue("static", layers) for layers in (2, 3, 4)], elue("elasticbert")
MINILM = transformers.BertConfig(
    hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, architectures=["BertModel"]
)
ROMEBERT = """\
RomeBERT's repository shows curves of DeeBERT, DeeBERT with self-distillation (SD), and RomeBERT (SD and gradient
regularization) on six GLUE tasks with BERT-base. Here: all-MiniLM-L6-v2, tasks of which the whole data set was
available, and heads that read the mean of the tokens. Each curve is the `entropy` policy at all thresholds; markers are
the exits alone."""
PABEE = """\
PABEE's README compares ALBERT-base with and without early exits on eight GLUE tasks (1.57 × fewer layers, scores 0 to
2.3 points higher), and BERT-base on three. Here: all-MiniLM-L6-v2 with 6 layers, recipe `pabee`, one seed. *last exit*:
the same model without early exits. The patience is the one with the best dev score among those that save layers, so
these scores are optimistic. STS-B has a tolerance of 0.25 (PABEE: 0.1)."""
ELUE = """\
The ELUE score is the mean height of a dynamic model's points above the curve of static models with fewer layers, in
points of accuracy, with FLOPs counted as in ELUE. The leaderboard's reference is ElasticBERT-base, whose curve was not
published as numbers. Here the reference are static all-MiniLM-L6-v2 models of 2, 3 and 4 layers, and the dynamic model
is trained with the recipe `elasticbert`; on ELUE's SST-2. Points outside of the reference's FLOPs are left out."""


def finished(name: str) -> Trained | None:
    """Return a finished run."""
    file = RESULTS / f"{name}.json"
    return Trained(json.loads(file.read_text())) if file.is_file() else None


def romebert() -> list[str]:
    """Draw the curves of tasks on which at least two recipes are finished."""
    groups = {
        task: [run for run in (finished(run.name) for run in runs) if run is not None]
        for task, runs in CURVE_RUNS.items()
    }
    groups = {task: runs for task, runs in groups.items() if len(runs) > 1}
    figure, axes = plt.subplots(1, len(groups), figsize=(4.2 * len(groups), 3.6), layout="constrained", squeeze=False)
    for axis, (task, runs) in zip(axes[0], groups.items(), strict=True):
        for color, run in zip(COLORS, runs, strict=False):
            points = run.curve
            axis.plot([p.layers for p in points], [p.score for p in points], color=color, label=_name(run))
            axis.plot(run.record["layers"], run.scores, ls="", marker="o", ms=4, color=color)
        axis.set(title=task, xlabel="mean layers per text", ylabel=f"dev {runs[0].record['metric']}, %")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(DOCS / "figures" / "papers-romebert.svg", metadata={"Date": None})
    plt.close(figure)
    rows = [
        [task, _name(run), *(f"{_at(run, layers):.1f}" for layers in (2, 3, 4)), f"{run.scores[-1]:.1f}", run.recipe]
        for task, runs in groups.items()
        for run in runs
    ]
    head = ["task", "system", "2 layers", "3 layers", "4 layers", "all layers", "recipe"]
    lines = ["## RomeBERT: curves against DeeBERT", "", ROMEBERT, "", "![Score against mean layers](../figures/"]
    lines[-1] += "papers-romebert.svg)"
    text = "Highest dev score with at most so many layers on average:"
    return [*lines, "", text, "", *table(head, rows), ""]


def _name(run: Trained) -> str:
    return CURVES[run.record["recipe"]]


def _at(run: Trained, layers: float) -> float:
    return max(point.score for point in run.curve if point.layers <= layers)


def pabee() -> list[str]:
    """Return the table of scores and fewer layers by patience."""
    rows = []
    for task, run in PABEE_RUNS.items():
        trained = finished(run.name)
        if trained is None:
            continue
        depth = trained.record["layers"][-1]
        tolerance = 0.25 if TASKS[run.task].answer_type.needs_tolerance else None
        points = [(value, trained.at(Patience(value, tolerance))) for value in PATIENCE]
        patience, best = max(points, key=lambda point: (point[1].layers < depth, point[1].score))
        cells = [f"{trained.scores[-1]:.1f}", f"{best.score:.1f}", str(patience), f"{depth / best.layers:.2f} ×"]
        rows.append([task, trained.record["metric"], *cells])
    head = ["task", "metric", "last exit", "with patience", "patience", "fewer layers"]
    return ["## PABEE: score with patience", "", PABEE, "", *table(head, rows), ""]


def elue_scores() -> list[str]:
    """Return the ELUE scores of entropy and patience on SST-2."""
    dynamic = finished(ELUE_DYNAMIC.name)
    static = [run for run in (finished(run.name) for run in ELUE_STATIC) if run is not None]
    if dynamic is None or len(static) < 2:
        return []
    reference = []
    for run in static:
        depth = run.record["layers"][-1]
        reference.append((_flops(static=True)[depth - 1], run.scores[-1] / 100))
    flops = _flops(static=False)
    policies: dict[str, list[Policy]] = {
        "entropy": [Entropy(value) for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)],
        "patience": [Patience(value) for value in PATIENCE],
    }
    rows = []
    for name, settings in policies.items():
        points = []
        for policy in settings:
            replayed = dynamic.trace.replay(policy)
            mean = sum(flops[int(layer) - 1] for layer in replayed.layer) / len(replayed.layer)
            points.append((mean, dynamic.at(policy).score / 100))
        inside = [point for point in points if reference[0][0] <= point[0] <= reference[-1][0]]
        mflops = ", ".join(f"{point[0] / 1e6:.0f} ({100 * point[1]:.1f})" for point in inside)
        rows.append([name, f"{100 * elue_score(inside, reference):+.2f}", mflops])
    curve = ", ".join(f"{flops / 1e6:.0f} ({100 * score:.1f})" for flops, score in reference)
    lines = ["## ElasticBERT: the ELUE score", "", ELUE, "", f"Reference, MFLOPs (accuracy): {curve}.", ""]
    return [*lines, *table(["policy", "ELUE score", "points, MFLOPs (accuracy)"], rows), ""]


def _flops(static: bool) -> list[float]:
    """Return the FLOPs of a text that exits after each layer."""
    exits = [{"layer": layer, "head": "linear"} for layer in range(1, MINILM.num_hidden_layers + 1)]
    flops = flops_per_exit(AdaptiveConfig(backbone=MINILM, exits=exits, num_labels=2), static=static)
    assert flops is not None
    return [float(value) for value in flops]


def main() -> None:
    """Train what is missing, if the folders are given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", default="", help="only train runs whose names start with this")
    args = parser.parse_args()
    assert set(CURVES) <= set(MINILM_RECIPES)
    runs = [*(run for group in CURVE_RUNS.values() for run in group), *PABEE_RUNS.values(), *ELUE_STATIC, ELUE_DYNAMIC]
    missing = [run for run in runs if finished(run.name) is None]
    if args.models and args.data and args.work:
        args.work.mkdir(parents=True, exist_ok=True)
        for run in missing:
            if run.name.startswith(args.only):
                train(run, args)
        missing = [run for run in missing if finished(run.name) is None]
    dates = sorted(run.record["date"] for run in (finished(run.name) for run in runs) if run is not None)
    machines = sorted({run.record["cpu"] for run in (finished(run.name) for run in runs) if run is not None})
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    about = f"Trained by `benchmarks/training_results.py` on {period}, {' and '.join(machines)}. Scores do not depend "
    about += "on the machine's speed. Written by `benchmarks/papers.py`."
    lines = ["# The papers' figures", "", about, "", *romebert(), *pabee(), *elue_scores()]
    (DOCS / "results" / "papers.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("Wrote docs/results/papers.md." + "".join(f" Missing: {run.name}." for run in missing))


if __name__ == "__main__":
    main()
