"""What an adapted model does on texts that nothing has used: changed predictions and fewer layers.

    python benchmarks/adapted_models.py NAME FAST ORIGINAL --unused FILE --dev FILE [--options TEXT]

FAST was made by `offramp adapt` from ORIGINAL; the files are CSV files with a column `text`. OPTIONS are the options of
`adapt` that differ from the default, for the page. Each run writes a file to benchmarks/results/adapted, from which
write_exits.py writes a section of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import offramp
from offramp.core.machine import cpu_name
from offramp.evaluation.traces.recording import record
from offramp.training.imitation.teacher import load_full_model

RESULTS = Path(__file__).parent / "results" / "adapted"
THRESHOLDS = np.geomspace(0.005, 0.5, 60)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the results on both files."""
    runner, original = offramp.load(args.fast, threads=1), load_full_model(args.original).runner()
    policy, depth = runner.config.exit_policy, runner.config.num_layers
    results: dict[str, Any] = {
        "name": args.name,
        "options": args.options,
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "precision": f"{runner.backend}, {runner.dtype}",
        "exits": [point.layer for point in runner.stepper.exits],
        "depth": depth,
    }
    for name, file in (("unused", args.unused), ("dev", args.dev)):
        with Path(file).open(encoding="utf-8", newline="") as opened:
            texts = [row["text"] for row in csv.DictReader(opened)]
        expected = original.answer(texts, policy="never", quiet=True).values
        with tempfile.TemporaryDirectory() as folder:
            trace = record(runner, texts, None, Path(folder) / "trace", name, quiet=True, progress=False)
            replayed, best = trace.replay(policy), 1.0
            for threshold in THRESHOLDS:
                other = trace.replay(replace(policy, threshold=float(threshold)))  # type: ignore[call-arg]
                if (other.answers != expected).mean() <= 0.02:
                    best = max(best, depth / float(other.layer.mean()))
            results[name] = {
                "rows": len(texts),
                "differ": float((replayed.answers != expected).mean()),
                "full_depth_differs": float((trace.full != expected).mean()),
                "fewer_layers": depth / float(replayed.layer.mean()),
                "fewer_layers_at_2_percent": best,
            }
    return results


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("fast")
    parser.add_argument("original")
    parser.add_argument("--unused", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--options", default="")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = measure(args)
    (RESULTS / f"{args.name}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
