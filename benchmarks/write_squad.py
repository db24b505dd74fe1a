"""What exits and width are worth for questions: the part of docs/results.md, from benchmarks/results/squad.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from offramp.report.figures import COLOURS
from squad_results import RESULTS, RUNS

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "squad-curve.svg"

MADE = """\
`benchmarks/squad_results.py`, {date}, {cpu}, torch {torch}. 384 tokens, batches of 16, two epochs at 1e-4
(`ebert-0.8`: half an epoch more on `plain`, blocks of 128; `joint-2.0`: one more on `joint`, 2.0's questions); a tenth
of the contexts set aside. A small encoder and a small part of SQuAD ({train:,} questions): the figures show what
leaving early costs, not how well one can read. Scores on the dev subset; *same*: the share of questions with the last
exit's text."""
SHORT = """\
The target was {target:.0%}: half an epoch, 121 updates, is too short for gates to get there. It is not
the price of a model at its target."""
PROMISED = """\
The guarantee was tested on the questions about contexts that training set aside, which come from the same articles; dev
has other articles. What became of it there: {differ:.1%} of the answers differ (promised: at most {risk:g} %)."""


def section() -> list[str]:
    """The part of docs/results.md."""
    lines = ["## Questions: all-MiniLM-L6-v2 on parts of SQuAD 1.1 and 2.0", ""]
    told = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not told:
        return [*lines, "Not run yet (`benchmarks/squad_results.py`).", ""]
    first = next(iter(told.values()))
    missing = [name for name in RUNS if name not in told]
    lines += [MADE.format(**first | {"train": first["trained"]["train"]}), ""]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    if "joint" in told:
        draw(told["joint"])
        lines += ["![F1 against layers run, joint](figures/squad-curve.svg)", ""]
    for name, one in told.items():
        lines += [*_model(name, one), ""]
    return lines


def draw(one: dict[str, Any]) -> None:
    """F1 against layers, a line per policy, and the exits alone."""
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for colour, (name, points) in zip(COLOURS, one["curves"].items(), strict=False):
        layers, scores, _ = zip(*sorted(points), strict=True)
        axes.plot(layers, [100 * score for score in scores], color=colour, label=name)
    exits = [(exit_["layer"], 100 * exit_["scores"]["span_f1"]) for exit_ in one["exits"]]
    axes.plot(*zip(*exits, strict=True), "o", color="#555555", label="one exit for all")
    axes.set(xlabel="layers run, mean over windows", ylabel="F1 on dev", title="SQuAD 1.1 subset, joint")
    axes.legend(frameon=False)
    figure.savefig(FIGURE, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _model(name: str, one: dict[str, Any]) -> list[str]:
    questions, windows = one["data"]["texts"], one["data"]["rows"]
    width = "" if one["width"] is None else f", {one['width']['ratio']:.1%} of the layers' operations left by its gates"
    lines = [f"**{name}**, {questions:,} questions in {windows:,} windows{width}", ""]
    head = ["", *(f"exit {exit_['layer']}" for exit_ in one["exits"])]
    lines += [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for metric in ("span_f1", "exact_match"):
        cells = [f"{100 * exit_['scores'][metric]:.1f}" for exit_ in one["exits"]]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    agreed = [f"{100 * exit_['agreement']:.1f}" for exit_ in one["exits"]]
    lines.append(f"| same | {' | '.join(agreed)} |")
    if one.get("official") and "NoAns_total" in one["official"]["full"]:
        full = one["official"]["full"]
        parts = ", ".join(f"{key} {full[key]:.1f}" for key in ("HasAns_exact", "HasAns_f1", "NoAns_exact"))
        lines += ["", f"Of the full model, with and without an answer: {parts}."]
    if one["width"] is not None and one["width"]["ratio"] > one["width"]["target"] + 0.05:
        lines += ["", SHORT.format(**one["width"])]
    lines += ["", "| policy | F1 | same | mean layers | fewer | measured |", "|---|---:|---:|---:|---:|---:|"]
    for point in one["live"]:
        cells = [f"`{point['policy']}`", f"{100 * point['score']:.1f}", f"{100 * point['agreement']:.1f}"]
        cells += [f"{point['mean_layers']:.2f}", f"{point['speedup']:.2f} ×", f"{point['measured_speedup']:.2f} ×"]
        lines.append(f"| {' | '.join(cells)} |")
    if one["guarantee"]:
        lines += ["", f"> {one['guarantee'].splitlines()[0]}"]
        if one["guarantee"].startswith("With"):
            differ = 1 - one["chosen"]["agreement"]
            lines += ["", PROMISED.format(differ=differ, risk=100 * one["risk"])]
    return lines
