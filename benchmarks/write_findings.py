"""What the training runs show, as paragraphs of docs/results/quality.md; their numbers are computed from the runs."""

from __future__ import annotations

import json

import numpy as np

from offramp.evaluation.intervals import bootstrap_mean
from trained_runs import Trained, group_of, table
from training_results import QUICK, RESULTS

HEADS = """\
### Learning rate of the heads

Linear heads need a higher learning rate than the encoder. With one learning rate for everything, the first exits of
`joint` stayed at chance for hundreds of updates. While they learned, the scores of the late exits fell, because the
encoder adapted to the untrained heads. `romebert-sd-gr` was stopped twice for this reason. At 1e-3, the heads learn
within the first few hundred updates and do not hurt the late exits.

- `romebert-sd-gr` at 2e-5: only the learning rate of the heads differs between the stopped run and the finished run.
  Its last exit ends below that of `joint`, because its gradients give way to those of the early exits, as the original
  chose for SST-2.
- `joint` at 5e-5 and at 2e-5: the learning rate of the encoder differs too. The runs on MiniLM above differ only in the
  heads.

`offramp train` therefore uses 1e-3 for linear heads by default. The published heads (`--pooling first`) keep the
published learning rate."""


def best_recipe(runs: list[Trained]) -> list[str]:
    """Return which recipe has the best mean score, and which others differ from it by more than chance."""
    if len(runs) < 2:
        return []
    right = {run.recipe: run.right.mean(1) for run in runs}
    best = max(right, key=lambda recipe: float(right[recipe].mean()))
    highs = {recipe: bootstrap_mean(rows - right[best])[1] for recipe, rows in right.items() if recipe != best}
    below = [f"`{recipe}`" for recipe, high in highs.items() if high < 0]
    close = [f"`{recipe}`" for recipe, high in highs.items() if high >= 0]
    lines = f"Best mean score over all exits: `{best}`. In a bootstrap over the dev rows (95 %), "
    parts = [f"{'all others' if not close else ', '.join(below)} are worse"] if below else []
    parts += [f"{', '.join(close)} cannot be distinguished from it"] if close else []
    return [f"{lines}{'; '.join(parts)}. The bootstrap does not include variation between seeds.", ""]


def during_training(runs: list[Trained]) -> list[str]:
    """Return the section about slow heads on twelve layers."""
    stopped = json.loads((RESULTS.parent / "stopped.json").read_text())
    trained = [run for run in group_of(runs, "mpnet-sst2-") if run.record["recipe"] in ("joint", "romebert-sd-gr")]
    histories = [(run.recipe, run.record["evaluations"]) for run in trained]
    histories += [
        (f"{run['recipe']}, {run['learning_rate']}, stopped at {run['stopped_at_update']}", run["evaluations"])
        for run in stopped
    ]
    rows = [
        [recipe, f"{evaluation['epoch']:g}", *(f"{100 * score:.1f}" for score in evaluation["exits"])]
        for recipe, evaluations in histories
        for evaluation in evaluations
    ]
    scores = table(["recipe", "epoch", *map(str, range(1, 13))], rows)
    title = "<summary>Dev scores by exit during training</summary>"
    return [HEADS, "", '<details markdown="1">', title, "", *scores, "", "</details>", ""]


def slow_heads(runs: list[Trained]) -> list[str]:
    """Return what the heads' learning rate changes on MiniLM, where nothing else differs."""
    by_name = {run.name: run for run in runs}
    names = [f"minilm-sst2-{recipe}{suffix}-42" for recipe in ("deebert", "joint") for suffix in ("", QUICK)]
    if not all(name in by_name for name in names):
        return []
    deebert_slow, deebert_fast, joint_slow, joint_fast = (np.array(by_name[name].scores) for name in names)
    gains = ", ".join(f"{value:+.1f}" for value in joint_fast - deebert_fast)
    text = (
        "**Effect of the heads' learning rate.** Heads at 1e-3 raise the first exit of `deebert` from "
        f"{deebert_slow[0]:.1f} to {deebert_fast[0]:.1f} and that of `joint` from {joint_slow[0]:.1f} to "
        f"{joint_fast[0]:.1f}. With one learning rate for everything, much of the gap at the first exit came from "
        f"heads of `deebert` that were not fully trained. `joint` is still better, by exit: {gains} points (one seed)."
    )
    return [text, ""]


def low_exits(runs: list[Trained]) -> list[str]:
    """Return how the first exits on STS-B compare with models that end there."""
    static = {run.record["layers"][-1]: run.scores[-1] for run in runs if run.record["recipe"] == "static"}
    exits = next((run.scores for run in runs if run.record["recipe"] == "pabee"), None)
    if exits is None or not {1, 2} <= static.keys():
        return []
    text = (
        f"Models with only one or two layers (`static`) reach {static[1]:.1f} and {static[2]:.1f}. The first two exits "
        f"of `pabee` reach {exits[0]:.1f} and {exits[1]:.1f}. One layer is not enough for this task. Two layers could "
        "do better than they do when later exits share them (one seed)."
    )
    return [text, ""]
