"""What `offramp adapt` gives: the part of docs/results.md, from the files in benchmarks/results/adapt."""

from __future__ import annotations

import json
from typing import Any

from adapt_results import CASES, RESULTS

TITLES = {
    "minilm-sst2": "SST-2, all-MiniLM-L6-v2",
    "minilm-sst2-2000": "the same, 2,000 texts",
    "mpnet-sst2": "SST-2, all-mpnet-base-v2",
    "mpnet-sst2-2000": "the same, 2,000 texts",
    "minilm-stsb": "STS-B (regression, within {tolerance:g}), all-MiniLM-L6-v2",
    "minilm-mrpc": "MRPC (pairs), all-MiniLM-L6-v2",
    "minilm-qnli": "QNLI's subset (pairs), all-MiniLM-L6-v2",
    "minilm-r52": "reuters-r52 (52 classes), all-MiniLM-L6-v2",
    "minilm-newsgroups": "20newsgroups (the parts of a group's name, several labels), all-MiniLM-L6-v2",
}
MADE = """\
`benchmarks/adapt_results.py`, {date}, {cpu}, {threads} thread{s}, torch {torch}. For each task a part of the training
rows fine-tunes "the user's model" (`--recipe plain`); other training rows without their labels are the texts of
`offramp adapt`, everything else as it comes; *guarantee* is at 90 % confidence, tested on texts of its own. *other rows*
are training rows that nobody used, *dev* is dev (of r52 and 20newsgroups the test set). *differ*: answers unlike the
user's model's; *layers*: times fewer; *seconds*: times faster than the user's model in one run, both in torch float32.
SST-2's training rows are phrases of sentences that they share, so *other rows* flatter and dev is the sterner test."""
LABELLED = """\
The same 12,000 texts of SST-2 with their labels, three epochs on the user's model, calibrated at 2 % and 90 % with
`entropy`: against its own last exit, and against the user's model (`--reference`). *-attention*: with `--heads
attention`. Layers: times fewer, and how many answers differ; *no*: no setting kept the guarantee. A model whose encoder
has moved differs from the user's in more than 2 % even at full depth."""


def section() -> list[str]:
    """The part of docs/results.md."""
    lines = ["## Your own classifier, without labels: `offramp adapt`", ""]
    told = [json.loads(file.read_text()) for case in CASES if (file := RESULTS / f"{case.name}.json").is_file()]
    if not told:
        return [*lines, "Not run yet (`benchmarks/adapt_results.py`).", ""]
    first = told[0]
    lines += [MADE.format(**first, s="s" if first["threads"] > 1 else ""), ""]
    missing = [case.name for case in CASES if not (RESULTS / f"{case.name}.json").is_file()]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    head = ["", "rows, texts", "minutes", "guarantee", "exits", "other rows: differ", "layers", "seconds"]
    head += ["dev: differ", "layers", "seconds"]
    lines += [f"| {' | '.join(head)} |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    lines += [_line(one) for one in told]
    lines.append("")
    labelled = {name: found for one in told for name, found in one["labelled"].items()}
    if labelled:
        lines += [
            LABELLED,
            "",
            "| recipe | dev accuracy by exit | own, other rows | own, dev | user's model, other rows | dev |",
            "|---|---" + "|---:" * 4 + "|",
        ]
        lines += [_recipe(name, found) for name, found in labelled.items()]
        lines.append("")
    return lines


def _line(one: dict[str, Any]) -> str:
    guarantee = one["guarantee"]
    user, texts, _ = one["sizes"]
    exits = ", ".join(map(str, guarantee["model"]["layers"]))
    cells = [TITLES[one["case"]].format(**one), f"{user:,}, {texts:,}", f"{one['seconds'] / 60:.1f}"]
    cells += [f"{100 * guarantee['guarantee']['risk']:g} %", exits]
    for name in ("unseen", "dev"):
        cells += _cells(one["measured"][name])
    return f"| {' | '.join(cells)} |"


def _cells(found: dict[str, float]) -> list[str]:
    return [f"{100 * found['differ']:.1f} %", f"{found['fewer_layers']:.2f} ×", f"{found['speedup']:.2f} ×"]


def _recipe(name: str, found: dict[str, Any]) -> str:
    exits = " / ".join(f"{100 * one:.1f}" for one in found["by_exit"])
    own = found.get("own")
    cells = [f"{one['fewer_layers']:.2f} × ({100 * one['differ']:.1f} %)" for one in (own or {}).values()]
    cells = cells or ["no", "no"]
    cells += [
        f"{found[part]['fewer_layers']:.2f} × ({100 * found[part]['differ']:.1f} %)" if part in found else "no"
        for part in ("unseen", "dev")
    ]
    return f"| `{name}` | {exits} | {' | '.join(cells)} |"
