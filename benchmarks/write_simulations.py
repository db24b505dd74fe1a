"""Write the table of simulated calibrations into docs/explanation/guarantees.md, from guarantee_simulations.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

from guarantee_simulations import PATHS, RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "guarantees.md"
SECTION = re.compile(r"(<!-- simulations: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("procedure", "guaranteed", "runs", "violated", "mean true risk", "mean layers of 6")


def main() -> None:
    """Write the section."""
    files = {RESULTS / f"{path.name}.json": path for path in PATHS}
    records = [
        json.loads(file.read_text("utf-8")) | {"title": path.title, "guaranteed": path.guaranteed}
        for file, path in files.items()
        if file.is_file()
    ]
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|---:|"]
    for record in records:
        title = f"*wrong:* {record['title']}" if record["wrong"] else record["title"]
        violated = f"{100 * record['violated']:.1f} % ± {100 * record['error']:.1f}"
        cells = [title, record["guaranteed"], f"{record['runs']:,}", violated]
        cells += [f"{100 * record['mean_risk']:.2f} %", f"{record['mean_layers']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    dates = ", ".join(sorted({record["date"] for record in records}))
    note = (
        f"`benchmarks/guarantee_simulations.py`, {dates}, 1,000 rows unless stated. A guarantee "
        "at 90 % confidence may be violated in 10 % of the runs; ± is one standard error. Procedures marked *wrong* "
        "show that the simulation notices: they are not what offramp does. With `--on-average`, the mean risk counts. "
        "Risk and layers are true values of the chosen setting, averaged over the runs."
    )
    text = SECTION.sub(
        lambda match: f"{match[1]}{note}\n\n" + "\n".join(lines) + f"\n{match[2]}", PAGE.read_text("utf-8")
    )
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
