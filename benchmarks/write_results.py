"""Write docs/results/quality.md and its figures from the records and traces in benchmarks/results.

python benchmarks/write_results.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from draw_exit_layers import draw_exit_layers
from offramp.data.tasks import TASKS
from offramp.policies import Entropy, Learned, Patience, Policy, parse
from offramp.policies.grids import grid
from offramp.report.figures import COLORS
from saved_results import policy_title
from trained_runs import Point, Trained, group_of, read, table
from training_results import RUNS
from write_adapt import section as adapt_section
from write_adapt import summary as adapt_summary
from write_calibration import exits_section
from write_calibration import section as guarantee_section
from write_calibration import summary as guarantee_summary
from write_findings import best_recipe, during_training, low_exits, slow_heads
from write_squad import section as squad_section
from write_width import section as width_section

plt.switch_backend("Agg")
plt.rcParams["svg.hashsalt"] = "offramp"  # the same figure is the same file
DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"
MINILM = "GLUE SST-2, all-MiniLM-L6-v2 (6 layers), one epoch"
MPNET = "GLUE SST-2, all-mpnet-base-v2 (12 layers), 20,000 rows, two epochs"
INTRODUCTION = """\
`benchmarks/write_results.py` writes this page from the files in `benchmarks/results`."""
READING = """\
The following sections compare [training recipes](../how-to/train.md#recipes). They were trained by
`benchmarks/training_results.py`.

- Scores are dev scores in percent, by exit layer. *heads 1e-3*: learning rate of the heads.
- *fewer layers at ≤ x %*: computed speedup of the `entropy` policy at the threshold that saves the most layers while at
  most x % of the predictions differ from the last exit's. In parentheses: the accuracy at this threshold. The threshold
  is selected on the same dev rows, so these values are optimistic.
- *prototype*: a minimal training loop (`joint`, linear heads on the mean) trained on all rows. Its values were entered
  by hand, all others are computed from the saved runs.
- *minutes*: training time on a busy machine, not a benchmark."""
SELECTED = """\
In these runs, each stage keeps its best epoch on dev and is scored on the same rows, so scores are optimistic. The runs
above keep their last weights."""
PROTOTYPE = {
    "minilm-sst2": ("prototype", [77.8, 81.3, 87.5, 88.2, 88.6, 88.3]),
    "mpnet-sst2": ("prototype, one epoch", [53.9, 60.6, 79.1, 84.6, 85.9, 89.8, 91.1, 91.6, 91.7, 91.7, 91.7, 91.3]),
}


def setting(runs: list[Trained]) -> str:
    """Return date, machine, versions, rows and options of some runs."""
    first = runs[0].record
    dates = sorted({run.record["date"] for run in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    rows = first["rows"]
    pairs = [f"{flag} {value}" for flag, value in runs[0].options.items() if flag != "--save-every"]
    return (
        f"{when}, {first['cpu']}, one thread per run, other work on the machine; torch {first['versions']['torch']}, "
        f"transformers {first['versions']['transformers']}. {rows['train']:,} training rows, {rows['calibration']:,} "
        f"set aside for calibration, {rows[next(iter(first['dev']))]:,} dev rows; metric: {first['metric']}. Options "
        f"of the first run: `{' '.join(pairs)}`."
    )


def exits_table(runs: list[Trained], key: str | None = None) -> list[str]:
    """Return every exit's score per recipe, and the layers saved by the entropy policy."""
    depth = max(run.record["layers"][-1] for run in runs)
    classes = TASKS[runs[0].record["task"]].labels is not None
    head = ["recipe", "seed", *(f"{layer}" for layer in range(1, depth + 1)), "mean", "minutes"]
    if classes:
        head += ["fewer layers at ≤ 1.3 %", "at ≤ 2 %"]
    rows = []
    if key in PROTOTYPE:
        name, scores = PROTOTYPE[key]
        rows.append([f"*{name}*", "", *(f"{value:.1f}" for value in scores), f"{np.mean(scores):.1f}", "", "", ""])
    for run in runs:
        score_at = dict(zip(run.record["layers"], run.scores, strict=True))
        cells = [f"{score_at[layer]:.1f}" if layer in score_at else "–" for layer in range(1, depth + 1)]
        row = [run.recipe, str(run.record["seed"]), *cells, f"{np.mean(run.scores):.1f}", run.minutes]
        if classes:
            row += [_saving(run, 1.3), _saving(run, 2.0)] if len(run.scores) > 1 else ["", ""]
        rows.append(row)
    return table(head, rows)


def _saving(run: Trained, disagreement: float) -> str:
    point = run.cheapest(disagreement)
    return f"{run.record['layers'][-1] / point.layers:.2f} × ({point.score:.1f})"


def draw(
    title: str, file: str, alone: list[Trained], curves: list[tuple[str, list[Point]]], right_title: str
) -> list[str]:
    """Draw the score of each exit, and score against mean layers."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    styles = [{"color": colour, "ls": line, "ms": 3} for line in ("-", ":") for colour in COLORS]
    for style, run in zip(styles, alone, strict=False):
        left.plot(run.record["layers"], run.scores, marker="o", label=run.recipe, **style)
    for style, (name, points) in zip(styles, curves, strict=False):
        mark = "" if len(points) > 20 else "o"
        right.plot([p.layers for p in points], [p.score for p in points], marker=mark, label=name, **style)
    metric = alone[0].record["metric"]
    left.set(xlabel="layer of the exit", ylabel=f"dev {metric}, %", title="one exit for all texts")
    right.set(xlabel="mean layers per text", ylabel=f"dev {metric}, %", title=right_title)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(title)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{file}.svg", metadata={"Date": None})
    plt.close(figure)
    return [f"![{title}](../figures/{file}.svg)", ""]


def exit_layers(file: str, runs: list[Trained]) -> list[str]:
    """Draw where texts exit, at the thresholds of the column `at ≤ 2 %`."""
    depth = max(run.record["layers"][-1] for run in runs)
    layers = [np.asarray(run.trace.replay(parse(run.cheapest(2.0).policy)).layer) for run in runs]
    shares = np.array([[100 * np.mean(exited == layer) for layer in range(1, depth + 1)] for exited in layers])
    draw_exit_layers(FIGURES / f"{file}.svg", [run.recipe for run in runs], shares, "dev texts by exit layer, %")
    text = "Where texts exit with the `entropy` policy, at the thresholds of the column *at ≤ 2 %*:"
    return [text, "", f"![Exit layers by recipe](../figures/{file}.svg)", ""]


def by_entropy(title: str, file: str, runs: list[Trained]) -> list[str]:
    """Draw the exits of the first seed, and their entropy curves."""
    exits = [run for run in runs if run.record["seed"] == 42 and len(run.scores) > 1]
    return draw(title, file, exits, [(run.recipe, run.curve) for run in exits], "entropy policy") if exits else []


def sst2(runs: list[Trained], start: str, title: str, file: str) -> list[str]:
    """Return a section about GLUE SST-2."""
    group = group_of(runs, start)
    if not group:
        return [f"## {title}", "", "Not run yet.", ""]
    exits = [run for run in group if run.record["seed"] == 42 and len(run.scores) > 1]
    lines = [f"## {title}", "", setting(group), "", *exits_table(group, start.rstrip("-")), ""]
    return [
        *lines,
        *best_recipe(exits),
        *by_entropy(title, file, group),
        *exit_layers(f"exit-layers-{file}", exits),
    ]


def seeds(runs: list[Trained], start: str) -> list[str]:
    """Return mean and standard deviation of recipes with several seeds."""
    by_recipe: dict[str, list[Trained]] = {}
    for run in group_of(runs, start):
        by_recipe.setdefault(run.recipe, []).append(run)
    rows = []
    for recipe, group in by_recipe.items():
        if len(group) < 2:
            continue
        scores = np.array([run.scores for run in group])
        cells = [f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(scores.mean(0), scores.std(0, ddof=1), strict=True)]
        rows.append([recipe, str(len(group)), *cells])
    if not rows:
        return []
    depth = len(rows[0]) - 2
    head = ["recipe", "seeds", *map(str, range(1, depth + 1))]
    return ["Mean and standard deviation over seeds:", "", *table(head, rows), ""]


def elue(runs: list[Trained]) -> list[str]:
    """Return the section that compares static depths with one dynamic model."""
    group = group_of(runs, "minilm-elue-sst2")
    title = "ELUE SST-2: early exits or a shallower model, all-MiniLM-L6-v2"
    lines = [f"## {title}", ""]
    if not group:
        return [*lines, "Not run yet.", ""]
    lines += [setting(group), "", *exits_table(group), ""]
    dynamic = next((run for run in group if run.record["recipe"] == "elasticbert"), None)
    if dynamic is not None:
        policies: list[Policy] = [Entropy(value) for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
        policies += [Patience(value) for value in (1, 2, 3, 4)]
        points = [dynamic.at(policy) for policy in policies]
        rows = [[policy_title(p.policy), f"{p.layers:.2f}", f"{p.score:.1f}", f"{p.disagreement:.1f}"] for p in points]
        lines += ["The model with exits (`elasticbert`) with the policies `entropy` and `patience`:", ""]
        lines += [*table(["policy", "mean layers", "accuracy", "changed predictions, %"], rows), ""]
        static = [Point("", run.record["layers"][-1], run.scores[-1], 0) for run in group if run is not dynamic]
        patience = [dynamic.at(Patience(value)) for value in range(1, 6)]
        curves = [("elasticbert, entropy", dynamic.curve), ("elasticbert, patience", patience), ("static", static)]
        lines += draw(title, "minilm-elue-sst2", group[::-1], curves, "early exits, or a shallower model")
    return lines


def small(runs: list[Trained]) -> list[str]:
    """Return the sections about RTE, MRPC and STS-B."""
    lines = ["## Small data sets: RTE, MRPC, STS-B, all-MiniLM-L6-v2", "", SELECTED, ""]
    for task in ("rte", "mrpc", "sts-b"):
        group = group_of(runs, f"minilm-{task}-")
        if not group:
            lines += [f"{task.upper()}: not run yet.", ""]
            continue
        lines += [
            f"### {task.upper()}",
            "",
            setting(group),
            "",
            *exits_table(group),
            "",
            *seeds(runs, f"minilm-{task}-"),
        ]
        lines += low_exits(group) if task == "sts-b" else [chance(group), ""]
        title = f"GLUE {task.upper()}, all-MiniLM-L6-v2, {group[0].options['--epochs']} epochs"
        exits = [run for run in group if len(run.scores) > 1]
        lines += regression(exits, title) if task == "sts-b" else by_entropy(title, f"minilm-{task}", exits)
    return lines


def chance(runs: list[Trained]) -> str:
    """Return the standard error of a score on so few rows."""
    labels = np.asarray(runs[0].trace.labels, dtype=np.int64)
    accuracy = float(np.mean([run.right[:, -1].mean() for run in runs]))
    error = 100 * np.sqrt(accuracy * (1 - accuracy) / len(labels))
    return (
        f"With {len(labels)} dev rows, the standard error of an accuracy is {error:.1f} points, not counting variation "
        f"between seeds. Always predicting the most frequent class gives "
        f"{100 * np.bincount(labels).max() / len(labels):.1f}."
    )


def regression(runs: list[Trained], title: str) -> list[str]:
    """Return patience and learned exits on a regression, which has no entropy."""
    rows, curves = [], []
    for run in runs:
        policies: list[Policy] = [Patience(p, t) for p in (1, 2, 3) for t in (0.1, 0.25, 0.5)]
        if run.trace.model_spec.lte:
            policies += [Learned(value) for value in (0.1, 0.2, 0.3, 0.4, 0.5)]
        points = [run.at(policy) for policy in policies]
        rows += [[run.recipe, policy_title(p.policy), f"{p.layers:.2f}", f"{p.score:.1f}"] for p in points]
        patience = [run.at(Patience(value, 0.25)) for value in range(1, 6)]
        curves.append((f"{run.recipe}, patience, tolerance 0.25", patience))
        if run.trace.model_spec.lte:
            learned = [run.at(policy) for policy in grid("learned", run.trace.model_spec)]
            curves.append((f"{run.recipe}, learned", learned))
    picture = draw(title, "minilm-sts-b", runs, curves, "patience and learned policies")
    points_table = table(["recipe", "policy", "mean layers", "corr"], rows)
    return ["Early exits on a regression:", "", *points_table, "", *picture]


def summary(runs: list[Trained]) -> list[str]:
    """Return the page's first three sentences."""
    run = next(run for run in runs if run.name == "minilm-sst2-joint-quick-heads-42")
    point = run.cheapest(2.0)
    recipe = (
        f"On SST-2, the default recipe (`joint`, 6 layers) runs {run.record['layers'][-1] / point.layers:.1f} × fewer "
        f"layers when 2 % of the predictions may change (threshold selected on the same rows). Accuracy goes from "
        f"{run.scores[-1]:.1f} to {point.score:.1f} %."
    )
    return [f"- {sentence}" for sentence in (adapt_summary(), recipe, guarantee_summary())]


def main() -> None:
    """Write the page."""
    runs = read()
    missing = [run.name for run in RUNS if run.name not in {trained.name for trained in runs}]
    lines = ["# Quality", "", *summary(runs), "", INTRODUCTION, ""]
    lines += adapt_section()
    lines += guarantee_section()
    lines += exits_section()
    lines += ["## How to read the recipe tables", "", READING, ""]
    lines += [f"Not run yet: {', '.join(f'`{name}`' for name in missing)}.", ""] if missing else []
    lines += sst2(runs, "minilm-sst2-", MINILM, "minilm-sst2")
    lines += seeds(runs, "minilm-sst2-") + slow_heads(runs)
    lines += sst2(runs, "mpnet-sst2-", MPNET, "mpnet-sst2")
    lines += during_training(runs)
    lines += elue(runs)
    lines += small(runs)
    lines += width_section()
    lines += squad_section()
    (DOCS / "results" / "quality.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"{len(runs)} runs written, {len(missing)} missing.")


if __name__ == "__main__":
    main()
