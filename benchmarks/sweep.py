"""Time to evaluate 200 thresholds × 5 policies on SST-2's dev sentences from a trace, checked against live runs.

    python benchmarks/sweep.py --model DIR --data DIR

MODEL is a trained model folder, DATA contains the GLUE folder. A few settings of each policy also run live, with the
model in the loop; the number of rows whose exit differs from the replayed one is reported and should be 0.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from offramp import load
from offramp.core.machine import cpu_name
from offramp.data.rows import DataOptions, load_rows
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.points import Scorer
from offramp.policies import Vote
from offramp.policies.grids import grid

POLICIES, LIVE = ("entropy", "confidence", "margin", "patience-confidence", "vote"), 4


def main() -> None:
    """Record a trace, sweep the thresholds, check live."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runner = load(args.model)
    data = load_rows(str(args.model), runner.config, DataOptions("sst-2", str(args.data / "GLUE")), "dev")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        trace = obtain_trace(runner, data, Path(folder) / "trace.safetensors")
        recording = time.perf_counter() - start
        scorer = Scorer(trace, data.metrics)
        grids = {name: grid(name, trace.model_spec) for name in POLICIES if name != "vote"}
        grids["vote"] = [Vote(1 + step / 40, 0.5) for step in range(200)]
        start = time.perf_counter()
        points = sum(len(scorer.curve(policies)) for policies in grids.values())
        seconds = time.perf_counter() - start
        num_different = 0
        for policies in grids.values():
            for policy in policies[:: len(policies) // LIVE]:
                live = runner.answer(data.rows.texts, policy=policy).layer
                num_different += int((trace.replay(policy).layer != live).sum())
    results = {
        "model": args.model.name,
        "rows": len(data.rows),
        "recording_seconds": round(recording, 2),
        "points": points,
        "sweep_seconds": round(seconds, 2),
        "exits_that_differ_live": num_different,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(results, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
