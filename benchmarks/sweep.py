"""How long 200 thresholds × 5 policies take on SST-2's dev sentences once the trace is there, and that they are right.

    python benchmarks/sweep.py --model DIR --data DIR

MODEL is a trained model folder, DATA holds GLUE. Prints seconds; the point of a trace is that they are few. For every
policy a few settings are run live, with the model in the loop: each row's exit has to be the replayed one.
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
    """Record, sweep, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runner = load(args.model)
    data = load_rows(str(args.model), runner.config, DataOptions("sst-2", str(args.data / "GLUE")), "dev")
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        trace = obtain_trace(runner, data, Path(place) / "trace.safetensors")
        recording = time.perf_counter() - start
        scorer = Scorer(trace, data.metrics)
        grids = {name: grid(name, trace.model_spec) for name in POLICIES if name != "vote"}
        grids["vote"] = [Vote(1 + place / 40, 0.5) for place in range(200)]
        start = time.perf_counter()
        points = sum(len(scorer.curve(policies)) for policies in grids.values())
        seconds = time.perf_counter() - start
        apart = 0
        for policies in grids.values():
            for policy in policies[:: len(policies) // LIVE]:
                live = runner.answer(data.rows.texts, policy=policy).layer
                apart += int((trace.replay(policy).layer != live).sum())
    told = {
        "model": args.model.name,
        "rows": len(data.rows),
        "recording_seconds": round(recording, 2),
        "points": points,
        "sweep_seconds": round(seconds, 2),
        "exits_that_differ_live": apart,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(told, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
