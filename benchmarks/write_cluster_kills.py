"""Write the table of docs/how-to/batch-jobs.md from benchmarks/results/cluster_kills.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "cluster_kills.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "batch-jobs.md"
MARK, END = "<!-- measured: written by benchmarks/write_cluster_kills.py -->", "<!-- end -->"
COUNTS = ("missing", "duplicate", "different", "leftovers")


def table(result: dict[str, Any]) -> list[str]:
    """Return the text and the table about kills on disk and on S3."""
    kills = ", ".join(f"{count} × {victim}" for victim, count in result["kills"].items())
    about = (
        f"`benchmarks/cluster_kills.py`, {result['date']}, {result['cpu']}. {result['rows']:,} rows in "
        f"{result['parts']} parts, on a local Ray cluster of two machines. {sum(result['kills'].values())} processes "
        f"are killed with SIGKILL while the job runs ({kills}); a killed driver is started again with the same "
        "command. *Different* counts labels that a single process does not predict. *Leftovers* counts files, "
        "unfinished uploads and copies of the model that do not belong to the finished job."
    )
    lines = ["| storage | after | missing rows | duplicate rows | different labels | leftovers |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for storage in ("disk", "S3"):
        for key, title in (("after the kills", "the kills"), ("after --overwrite", "`--overwrite`")):
            counts = " | ".join(str(result[storage][key][count]) for count in COUNTS)
            lines.append(f"| {storage} | {title} | {counts} |")
    return [about, "", *lines, ""]


def main() -> None:
    """Replace the marked part of the page."""
    result = json.loads(RESULTS.read_text("utf-8"))
    before, rest = PAGE.read_text("utf-8").split(MARK, 1)
    PAGE.write_text(f"{before}{MARK}\n\n" + "\n".join(table(result)) + "\n" + END + rest.split(END, 1)[1], "utf-8")


if __name__ == "__main__":
    main()
