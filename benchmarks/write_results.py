"""Write docs/results.md and its figures from the records and traces in benchmarks/results/training.

python benchmarks/write_results.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from offramp.data.tasks import TASKS
from offramp.policies import Entropy, Learned, Patience, Policy
from offramp.policies.grids import grid
from offramp.report.figures import COLOURS
from trained_runs import Point, Trained, group_of, read, table
from training_results import RUNS
from write_adapt import section as adapt_section
from write_calibration import section
from write_findings import low_exits, on_the_way, slow_heads, told_apart
from write_squad import section as squad_section
from write_width import section as width_section

plt.switch_backend("Agg")
plt.rcParams["svg.hashsalt"] = "offramp"  # the same figure is the same file
DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"
INTRODUCTION = """\
Written by `benchmarks/write_results.py` from `benchmarks/results/training`, which `benchmarks/training_results.py`
made; no figure is typed by hand but the sketch's, which is the bare loop to beat (joint, linear heads on the mean; it
trained on all rows, nothing set aside). Dev scores in percent, columns are exits by layer. Minutes are of a busy
machine and no benchmark."""
ROSY = """\
*fewer layers at ≤ x %*: by entropy, with at most so many answers other than the last exit's; behind it the accuracy
then. The threshold is chosen on these same dev rows, so a little rosy."""
CHOSEN = """\
Each stage keeps its best epoch on dev, and is scored on the same rows: a little rosy. The runs above keep their last
weights."""
SKETCH = {
    "minilm-sst2": ("sketch", [77.8, 81.3, 87.5, 88.2, 88.6, 88.3]),
    "mpnet-sst2": ("sketch, one epoch", [53.9, 60.6, 79.1, 84.6, 85.9, 89.8, 91.1, 91.6, 91.7, 91.7, 91.7, 91.3]),
}


def setting(runs: list[Trained]) -> str:
    """When, where, with what."""
    first = runs[0].record
    dates = sorted({one.record["date"] for one in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    rows = first["rows"]
    pairs = [f"{flag} {value}" for flag, value in runs[0].options.items() if flag != "--save-every"]
    return (
        f"{when}, {first['cpu']}, one thread per run, other work on the machine; torch {first['versions']['torch']}, "
        f"transformers {first['versions']['transformers']}. {rows['train']:,} training rows, {rows['calibration']:,} "
        f"set aside for calibration, {rows[next(iter(first['dev']))]:,} dev rows; "
        f"{first['metric']}. First run: `{' '.join(pairs)}`."
    )


def exits_table(runs: list[Trained], key: str | None = None) -> list[str]:
    """Every exit's score per recipe, and what leaving by entropy saves."""
    depth = max(one.record["layers"][-1] for one in runs)
    classes = TASKS[runs[0].record["task"]].labels is not None
    head = ["recipe", "seed", *(f"{layer}" for layer in range(1, depth + 1)), "mean", "minutes"]
    if classes:
        head += ["fewer layers at ≤ 1.3 %", "at ≤ 2 %"]
    rows = []
    if key in SKETCH:
        name, scores = SKETCH[key]
        rows.append([f"*{name}*", "", *(f"{value:.1f}" for value in scores), f"{np.mean(scores):.1f}", "", "", ""])
    for one in runs:
        at = dict(zip(one.record["layers"], one.scores, strict=True))
        cells = [f"{at[layer]:.1f}" if layer in at else "–" for layer in range(1, depth + 1)]
        row = [
            one.recipe,
            str(one.record["seed"]),
            *cells,
            f"{np.mean(one.scores):.1f}",
            one.minutes,
        ]
        if classes:
            row += [_saving(one, 1.3), _saving(one, 2.0)] if len(one.scores) > 1 else ["", ""]
        rows.append(row)
    return table(head, rows)


def _saving(one: Trained, disagreement: float) -> str:
    point = one.cheapest(disagreement)
    return f"{one.record['layers'][-1] / point.layers:.2f} × ({point.score:.1f})"


def draw(title: str, file: str, alone: list[Trained], curves: list[tuple[str, list[Point]]], how: str) -> list[str]:
    """Two pictures: each exit alone, and score against layers run."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    styles = [{"color": colour, "ls": line, "ms": 3} for line in ("-", ":") for colour in COLOURS]
    for style, one in zip(styles, alone, strict=False):
        left.plot(one.record["layers"], one.scores, marker="o", label=one.recipe, **style)
    for style, (name, points) in zip(styles, curves, strict=False):
        mark = "" if len(points) > 20 else "o"
        right.plot([p.layers for p in points], [p.score for p in points], marker=mark, label=name, **style)
    metric = alone[0].record["metric"]
    left.set(xlabel="exit on layer", ylabel=f"dev {metric}, %", title="each exit alone")
    right.set(xlabel="layers run, mean over rows", ylabel=f"dev {metric}, %", title=how)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(title)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{file}.svg", metadata={"Date": None})
    plt.close(figure)
    return ["", f"![{title}](figures/{file}.svg)", ""]


def by_entropy(title: str, file: str, runs: list[Trained]) -> list[str]:
    """The first seed's exits, and what leaving by entropy gives."""
    exits = [one for one in runs if one.record["seed"] == 42 and len(one.scores) > 1]
    return draw(title, file, exits, [(one.recipe, one.curve) for one in exits], "leaving by entropy") if exits else []


def sst2(runs: list[Trained], start: str, title: str, file: str) -> list[str]:
    """A section for GLUE SST-2."""
    some = group_of(runs, start)
    if not some:
        return [f"## {title}", "", "Not run yet.", ""]
    exits = [one for one in some if one.record["seed"] == 42 and len(one.scores) > 1]
    lines = [f"## {title}", "", setting(some), "", *exits_table(some, start.rstrip("-")), ""]
    return [*lines, ROSY, "", *told_apart(exits), *by_entropy(title, file, some)]


def seeds(runs: list[Trained], start: str) -> list[str]:
    """Mean and spread where there are several seeds."""
    by_recipe: dict[str, list[Trained]] = {}
    for one in group_of(runs, start):
        by_recipe.setdefault(one.recipe, []).append(one)
    rows = []
    for recipe, some in by_recipe.items():
        if len(some) < 2:
            continue
        main = np.array([one.scores for one in some])
        cells = [f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(main.mean(0), main.std(0, ddof=1), strict=True)]
        rows.append([recipe, str(len(some)), *cells])
    if not rows:
        return []
    depth = len(rows[0]) - 2
    return [
        "Mean and standard deviation over seeds:",
        "",
        *table(["recipe", "seeds", *map(str, range(1, depth + 1))], rows),
        "",
    ]


def elue(runs: list[Trained]) -> list[str]:
    """Static depths against one dynamic model."""
    some = group_of(runs, "minilm-elue-sst2")
    title = "ELUE SST-2: static depths and one dynamic model, all-MiniLM-L6-v2"
    lines = [f"## {title}", ""]
    if not some:
        return [*lines, "Not run yet.", ""]
    lines += [setting(some), "", *exits_table(some), ""]
    dynamic = next((one for one in some if one.record["recipe"] == "elasticbert"), None)
    if dynamic is not None:
        wanted: list[Policy] = [Entropy(value) for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
        wanted += [Patience(value) for value in (1, 2, 3, 4)]
        points = [dynamic.at(policy) for policy in wanted]
        rows = [[f"`{p.policy}`", f"{p.layers:.2f}", f"{p.score:.1f}", f"{p.disagreement:.1f}"] for p in points]
        lines += ["The dynamic model (`elasticbert`) by entropy and by patience:", ""]
        lines += [*table(["policy", "mean layers", "acc", "disagreement, %"], rows), ""]
        static = [Point("", one.record["layers"][-1], one.scores[-1], 0) for one in some if one is not dynamic]
        patience = [dynamic.at(Patience(value)) for value in range(1, 6)]
        curves = [("elasticbert, entropy", dynamic.curve), ("elasticbert, patience", patience), ("static", static)]
        lines += draw(title, "minilm-elue-sst2", some[::-1], curves, "leaving early, or a smaller model")
    return lines


def small(runs: list[Trained]) -> list[str]:
    """RTE, MRPC, STS-B."""
    lines = ["## Small sets: RTE, MRPC, STS-B, all-MiniLM-L6-v2", "", CHOSEN, ""]
    for task in ("rte", "mrpc", "sts-b"):
        some = group_of(runs, f"minilm-{task}-")
        if not some:
            lines += [f"{task}: not run yet.", ""]
            continue
        lines += [f"### {task}", "", setting(some), "", *exits_table(some), "", *seeds(runs, f"minilm-{task}-")]
        lines += low_exits(some) if task == "sts-b" else [chance(some), ""]
        title = f"GLUE {task.upper()}, all-MiniLM-L6-v2, {some[0].options['--epochs']} epochs"
        exits = [one for one in some if len(one.scores) > 1]
        lines += regression(exits, title) if task == "sts-b" else by_entropy(title, f"minilm-{task}", exits)
    return lines


def chance(some: list[Trained]) -> str:
    """How far a score may be off on so few rows."""
    labels = np.asarray(some[0].trace.labels, dtype=np.int64)
    accuracy = float(np.mean([one.right[:, -1].mean() for one in some]))
    error = 100 * np.sqrt(accuracy * (1 - accuracy) / len(labels))
    return (
        f"With {len(labels)} dev rows an accuracy is good to ± {error:.1f} points (one standard error), seeds apart; "
        f"the more frequent class alone gives {100 * np.bincount(labels).max() / len(labels):.1f}."
    )


def regression(some: list[Trained], title: str) -> list[str]:
    """Patience and learned exits, where entropy says nothing."""
    rows, curves = [], []
    for one in some:
        ways: list[Policy] = [Patience(p, t) for p in (1, 2, 3) for t in (0.1, 0.25, 0.5)]
        if one.trace.model_spec.lte:
            ways += [Learned(value) for value in (0.1, 0.2, 0.3, 0.4, 0.5)]
        points = [one.at(policy) for policy in ways]
        rows += [[one.recipe, f"`{p.policy}`", f"{p.layers:.2f}", f"{p.score:.1f}"] for p in points]
        curves.append(
            (f"{one.recipe}, patience, within 0.25", [one.at(Patience(value, 0.25)) for value in range(1, 6)])
        )
        if one.trace.model_spec.lte:
            learned = [one.at(policy) for policy in grid("learned", one.trace.model_spec)]
            curves.append((f"{one.recipe}, learned", learned))
    picture = draw(title, "minilm-sts-b", some, curves, "leaving early")
    told = table(["recipe", "policy", "mean layers", "corr"], rows)
    return ["Leaving early on a regression:", "", *told, *picture]


def main() -> None:
    """Write the page."""
    runs = read()
    missing = [run.name for run in RUNS if run.name not in {one.name for one in runs}]
    lines = [
        "# Results of training",
        "",
        INTRODUCTION,
        "",
        f"Not run yet: {', '.join(f'`{name}`' for name in missing)}." if missing else "Everything planned was run.",
        "",
    ]
    lines += sst2(runs, "minilm-sst2-", "GLUE SST-2, all-MiniLM-L6-v2 (six layers), one epoch", "minilm-sst2")
    lines += seeds(runs, "minilm-sst2-") + slow_heads(runs)
    lines += sst2(
        runs, "mpnet-sst2-", "GLUE SST-2, all-mpnet-base-v2 (twelve layers), 20,000 rows, two epochs", "mpnet-sst2"
    )
    lines += on_the_way(runs)
    lines += section()
    lines += adapt_section()
    lines += width_section()
    lines += squad_section()
    lines += elue(runs)
    lines += small(runs)
    (DOCS / "results.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"{len(runs)} runs written, {len(missing)} missing.")


if __name__ == "__main__":
    main()
