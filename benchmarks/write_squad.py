"""The section of docs/results/quality.md about question answering, from benchmarks/results/squad.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from offramp.report.figures import COLORS
from saved_results import guarantee_of, policy_title
from squad_results import RESULTS, RUNS

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "squad-curve.svg"

SETTING = """\
`benchmarks/squad_results.py`, {date}, {cpu}, torch {torch}. 384 tokens, batch size 16, two epochs at 1e-4, a tenth of
the contexts set aside. `ebert-0.8` continues `plain` for half an epoch with blocks of 128 channels; `joint-2.0`
continues `joint` for one epoch on SQuAD 2.0 questions. Encoder and data set ({train:,} questions) are small: the
results show what early exits cost, not how well a model can answer. Scores are on the dev subset. *same*: the share of
questions with the same answer text as the last exit."""
SHORT = """\
The target was {target:.0f} %. Half an epoch (121 updates) is too short for the gates to reach it, so this is not the
cost of a model at its target."""
GUARANTEE = """\
**Guarantee.** With {confidence} % confidence, at most {risk:g} % of the answers differ from the full model's. Tested
on {rows} questions {origin} with {policy}, at {speedup} × fewer layers. The calibration questions are about the
articles of the training set; dev has other articles. There, {differ:.1f} % of the answers differ."""
SENTENCE = re.compile(
    r"With (?P<confidence>[\d.]+) % .* shown on (?P<rows>[\d,]+) questions (?P<origin>.*), with `(?P<policy>.*)`, "
    r"which ran (?P<speedup>[\d.]+) ×"
)
ORIGINS = {
    "that training did not see": "that training did not use",
    "that may have helped to choose the checkpoint": "that may have been used to select the checkpoint",
}


def section() -> list[str]:
    """Return the section's lines."""
    lines = ["## Question answering: all-MiniLM-L6-v2 on subsets of SQuAD 1.1 and 2.0", ""]
    records = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not records:
        return [*lines, "Not run yet (`benchmarks/squad_results.py`).", ""]
    first = next(iter(records.values()))
    missing = [name for name in RUNS if name not in records]
    lines += [SETTING.format(**first | {"train": first["trained"]["train"]}), ""]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    if "joint" in records:
        draw(records["joint"])
        lines += ["![F1 against mean layers, joint](../figures/squad-curve.svg)", ""]
    for name, record in records.items():
        lines += [*_model(name, record), ""]
    return lines


def draw(record: dict[str, Any]) -> None:
    """Draw F1 against layers, a line per policy, and the exits alone."""
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for colour, (name, points) in zip(COLORS, record["curves"].items(), strict=False):
        layers, scores, _ = zip(*sorted(points), strict=True)
        axes.plot(layers, [100 * score for score in scores], color=colour, label=name)
    exits = [(exit_["layer"], 100 * exit_["scores"]["span_f1"]) for exit_ in record["exits"]]
    axes.plot(*zip(*exits, strict=True), "o", color="#555555", label="one exit for all windows")
    axes.set(xlabel="mean layers per window", ylabel="F1 on dev", title="SQuAD 1.1 subset, joint")
    axes.legend(frameon=False)
    figure.savefig(FIGURE, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _model(name: str, record: dict[str, Any]) -> list[str]:
    questions, windows, width = record["data"]["texts"], record["data"]["rows"], record["width"]
    left = "" if width is None else f", {100 * width['ratio']:.1f} % of the layers' operations left by its gates"
    lines = [f"**{name}**, {questions:,} questions in {windows:,} windows{left}", ""]
    head = ["", *(f"exit {exit_['layer']}" for exit_ in record["exits"])]
    lines += [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for metric, title in (("span_f1", "F1"), ("exact_match", "exact match")):
        cells = [f"{100 * exit_['scores'][metric]:.1f}" for exit_ in record["exits"]]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    same = [f"{100 * exit_['agreement']:.1f}" for exit_ in record["exits"]]
    lines.append(f"| same | {' | '.join(same)} |")
    if record.get("official") and "NoAns_total" in record["official"]["full"]:
        full = record["official"]["full"]
        text = f"Full model, questions with an answer: exact match {full['HasAns_exact']:.1f}, F1 "
        text += f"{full['HasAns_f1']:.1f}. Questions without an answer: exact match {full['NoAns_exact']:.1f}."
        lines += ["", text]
    if width is not None and width["ratio"] > width["target"] + 0.05:
        lines += ["", SHORT.format(target=100 * width["target"])]
    lines += ["", "| policy | F1 | same | mean layers | fewer layers | measured |", "|---|---:|---:|---:|---:|---:|"]
    for point in record["live"]:
        cells = [policy_title(point["policy"]), f"{100 * point['score']:.1f}", f"{100 * point['agreement']:.1f}"]
        cells += [f"{point['mean_layers']:.2f}", f"{point['speedup']:.2f} ×", f"{point['measured_speedup']:.2f} ×"]
        lines.append(f"| {' | '.join(cells)} |")
    if (sentence := guarantee_of(record)) and (tested := SENTENCE.match(sentence)):
        words = tested.groupdict()
        words |= {"origin": ORIGINS.get(words["origin"], words["origin"]), "policy": policy_title(words["policy"])}
        differ = 100 * (1 - record["chosen"]["agreement"])
        lines += ["", GUARANTEE.format(**words, risk=100 * record["risk"], differ=differ)]
    return lines
