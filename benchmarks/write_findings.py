"""What the training runs taught, as paragraphs of docs/results.md; their numbers are computed from the runs."""

from __future__ import annotations

import json

import numpy as np

from offramp.evaluation.intervals import bootstrap_mean
from trained_runs import Trained, group_of, table
from training_results import QUICK, RESULTS

HEADS = """\
**Bare heads need a learning rate of their own.** With one rate for everything `joint`'s first exits stayed at chance
for hundreds of updates, and while they learned, the late exits fell: a linear head at an encoder's rate is slow, and
the encoder bends to it instead. `romebert-sd-gr` was stopped twice that way. Heads at 1e-3 learn in the first few
hundred updates and leave the late exits alone. `romebert-sd-gr` learns with them, too (at 2e-5 for the encoder nothing
else differs between the stopped run and the finished one); its last exit gives way to the early ones, as the original
chose for SST-2, and ends below `joint`'s. On MiniLM, too, nothing but the heads' rate differs; in mpnet's `joint` the
encoder's is lower as well. `offramp train` does so now unless told otherwise; the published heads (`--pooling first`)
keep the published rate. Dev scores on the way:"""


def told_apart(runs: list[Trained]) -> list[str]:
    """Which recipes' means differ from the best one's by more than these rows' chance."""
    if len(runs) < 2:
        return []
    right = {one.recipe: one.right.mean(1) for one in runs}
    best = max(right, key=lambda recipe: float(right[recipe].mean()))
    highs = {recipe: bootstrap_mean(rows - right[best])[1] for recipe, rows in right.items() if recipe != best}
    below = [f"`{recipe}`" for recipe, high in highs.items() if high < 0]
    beside = [f"`{recipe}`" for recipe, high in highs.items() if high >= 0]
    words = f"Mean over the exits: `{best}` is best. By resampling the dev rows (95 %)"
    parts = [f"{', '.join(below)} lie below it"] if below else []
    parts += [f"{', '.join(beside)} cannot be told from it"] if beside else []
    return [f"{words} {'; '.join(parts)}. Seeds are not in that.", ""]


def on_the_way(runs: list[Trained]) -> list[str]:
    """What slow heads do to twelve layers."""
    stopped = json.loads((RESULTS.parent / "stopped.json").read_text())
    together = [one for one in group_of(runs, "mpnet-sst2-") if one.record["recipe"] in ("joint", "romebert-sd-gr")]
    told = [(one.recipe, one.record["evaluations"]) for one in together]
    told += [
        (f"{one['recipe']}, {one['learning_rate']}, stopped at {one['stopped_at_update']}", one["evaluations"])
        for one in stopped
    ]
    rows = [
        [recipe, f"{one['epoch']:g}", *(f"{100 * value:.1f}" for value in one["exits"])]
        for recipe, evaluations in told
        for one in evaluations
    ]
    return [HEADS, "", *table(["recipe", "epoch", *map(str, range(1, 13))], rows), ""]


def slow_heads(runs: list[Trained]) -> list[str]:
    """How much of the distance between two recipes was the heads' rate, on MiniLM where nothing else differs."""
    by_name = {one.name: one for one in runs}
    names = [f"minilm-sst2-{recipe}{how}-42" for recipe in ("deebert", "joint") for how in ("", QUICK)]
    if not all(name in by_name for name in names):
        return []
    slow, quick, joint_slow, joint_quick = (np.array(by_name[name].scores) for name in names)
    apart = ", ".join(f"{value:+.1f}" for value in joint_quick - quick)
    words = (
        f"**Slow heads flatter joint training.** Heads at 1e-3 lift DeeBERT's first exit from {slow[0]:.1f} to "
        f"{quick[0]:.1f} and `joint`'s from {joint_slow[0]:.1f} to {joint_quick[0]:.1f}: at one rate for all, much of "
        f"DeeBERT's distance on the lowest exit is that its heads were not done. Joint training is still ahead, exit "
        f"by exit {apart} points (one seed)."
    )
    return [words, ""]


def low_exits(some: list[Trained]) -> list[str]:
    """STS-B's first exits against models that end there."""
    alone = {one.record["layers"][-1]: one.scores[-1] for one in some if one.record["recipe"] == "static"}
    exits = next((one.scores for one in some if one.record["recipe"] == "pabee"), None)
    if exits is None or not {1, 2} <= alone.keys():
        return []
    words = (
        f"Models cut off there and trained for themselves (`static`) reach {alone[1]:.1f} with one layer and "
        f"{alone[2]:.1f} with two, `pabee`'s exits {exits[0]:.1f} and {exits[1]:.1f}: one layer is not enough here, "
        "two could do more than they do where they serve the exits behind them too (one seed)."
    )
    return [words, ""]
