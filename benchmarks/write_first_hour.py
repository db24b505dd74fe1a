"""Write docs/results/first-hour.md from the records of first_hour.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "first_hour"
PAGE = Path(__file__).parent.parent / "docs" / "results" / "first-hour.md"
TITLES = {
    "tweets": "tweets and short reviews, 3 classes",
    "films": "film reviews of 230 tokens on average, 2 classes",
}
HEAD = """\
# The first hour

Two classifiers that were fine-tuned without offramp, with the Trainer of transformers and all-MiniLM-L6-v2, then
adapted with `offramp adapt my-classifier texts.txt --backend onnx --threads 1`, used, exported and served, from an
empty folder. Written by `benchmarks/write_first_hour.py` from the records of `benchmarks/first_hour.py`; transcripts
of everything that was printed are beside the records.

*Changed predictions* are counted on texts that nothing has seen, compared with the Hugging Face pipeline. *CPU time* is
that of one thread for these texts, tokenization included. offramp sorts and batches texts by itself; the pipeline and
*ordinary int8* (`quantize_dynamic` of ONNX Runtime, per channel) run in batches of 32 in the order of the file.

"""
COLUMNS = ["classifier", "by", "guarantee", "changed predictions", "changed by ordinary int8"]
COLUMNS += ["× less CPU time than the pipeline", "than ordinary int8", "minutes"]


def main() -> None:
    """Write the page."""
    records = [json.loads(file.read_text("utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(row, records)]
    printed = []
    for record in records:
        lines = "\n".join(record["summary"])
        printed.append(f"{TITLES[record['trial']]}, {100 * record['risk']:g} %:\n\n```text\n{lines}\n```\n")
    machine = "; ".join(sorted({f"{record['cpu']}, {record['date']}" for record in records}))
    old = [record for record in records if "pytorch_threads" not in record]
    if old:
        machine += "; *my-classifier in PyTorch* ran with two threads, whose waiting is CPU time too"
    footer = f"\nMachine: {machine}. Minutes cover everything, from adapting to serving.\n"
    text = HEAD + "\n".join(rows) + "\n" + footer + "\n## What `adapt` printed\n\n" + "\n".join(printed)
    PAGE.write_text(text, "utf-8")


def row(record: dict[str, Any]) -> str:
    """Return a row of the table."""
    seconds, differ = record["cpu_seconds"], record["differ"]
    way = "command line" if record["mode"] == "cli" else "Python"
    cells = [
        TITLES[record["trial"]],
        way,
        f"{100 * record['risk']:g} % at 90 %",
        f"{100 * differ['predictions.csv']:.1f} % of {record['texts']:,}",
        f"{100 * differ['int8']:.1f} %",
        f"{seconds['pipeline'] / seconds['offramp']:.1f}",
        f"{seconds['int8'] / seconds['offramp']:.1f}",
        f"{record['minutes']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
