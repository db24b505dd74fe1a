"""Write docs/results/rare-classes.md from the records of rare_classes.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rare_classes import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "results" / "rare-classes.md"
TITLES = {
    "clinc": "CLINC150, three of 150 intents against all others, all-MiniLM-L6-v2",
    "guard": "requests of CLINC150 with 2 % injections, prompt-guard (DeBERTa, 12 layers, fine-tuned elsewhere)",
    "r52": "reuters-r52, all-MiniLM-L6-v2",
    "newsgroups": "20 newsgroups, all-MiniLM-L6-v2",
    "sst2": "SST-2, all-MiniLM-L6-v2",
    "mrpc": "MRPC (risk 5 %), all-MiniLM-L6-v2",
}
RARE = 0.03  # fraction of the fresh texts below which a class counts as rare
HEAD = """\
# Rare classes

What a limit per class keeps, and what it costs. Each classifier was adapted twice with the same texts, with
`--class-risk none` and with the default of 10 % per class, at 2 % risk and 90 % confidence, and both were compared with
the classifier on fresh texts. Written by `benchmarks/write_rare_classes.py` from the records of
`benchmarks/rare_classes.py`.

*Rare* classes are those that the classifier predicts for less than 3 % of the fresh texts, for prompt-guard the class
MALICIOUS. *Worst class*: the largest fraction of its predictions that a class of at least 20 fresh texts loses.

"""
COLUMNS = ["classifier", "limit per class", "test rows", "fresh texts", "changed"]
COLUMNS += ["rare: lost", "worst class", "fewer layers"]
MODES = {"none": "none", "default": "10 %"}


def main() -> None:
    """Write the page."""
    records = [json.loads((RESULTS / f"{name}.json").read_text("utf-8")) for name in TITLES if _exists(name)]
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    for record in records:
        lines += [row(record, mode) for mode in MODES]
    machines = "; ".join(sorted({f"{record['cpu']}, {record['date']}" for record in records}))
    PAGE.write_text(f"{HEAD}{chr(10).join(lines)}\n\nMachine: {machines}; PyTorch float32.\n", "utf-8")


def _exists(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def row(record: dict[str, Any], mode: str) -> str:
    """Return a row of the table."""
    result, title = record[mode], TITLES[record["case"]]
    if "refused" in result:
        return f"| {title} | {MODES[mode]} | | | | | | refused |"
    classes = [entry for entry in result["classes"] if entry["rows"]]
    rare = [entry for entry in classes if entry["rows"] < RARE * result["rows"] or entry["name"] == "MALICIOUS"]
    lost, rows = (sum(entry[key] for entry in rare) for key in ("lost", "rows"))
    large = [entry for entry in classes if entry["rows"] >= 20]
    worst = max(large, key=lambda entry: entry["lost"] / entry["rows"])
    cells = [
        title,
        MODES[mode],
        f"{result['tested']:,}",
        f"{result['rows']:,}",
        f"{100 * result['changed']:.1f} %",
        f"{lost} of {rows}" if rare else "no rare class",
        f"{100 * worst['lost'] / worst['rows']:.1f} % ({worst['name']}, {worst['rows']})",
        f"{result['fewer_layers']:.2f} ×",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
