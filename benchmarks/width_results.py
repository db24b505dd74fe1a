"""Width pruning on real data: EBERT's gates on all-MiniLM-L6-v2 and GLUE SST-2, next to the plain model and exits.

    python benchmarks/width_results.py --models DIR --data DIR --work DIR [--only plain,ebert-0.8-128] [--measure]

MODELS contains all-MiniLM-L6-v2, DATA the official GLUE folder, WORK the runs. Finished runs are skipped, interrupted
ones are resumed from their last checkpoint. With `--measure`, every finished model is evaluated on dev, with its time
compared with the plain encoder's; the machine should be idle then. The results are in benchmarks/results/width.json,
from which write_width.py writes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from offramp.core.machine import cpu_name

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "width.json"
MINILM = "all-MiniLM-L6-v2"
COMMON = ["--epochs", "1", "--max-length", "64", "--batch-size", "32", "--select", "none", "--save-every", "500"]
GENTLE = ["--learning-rate", "5e-5", "--warmup", "0.1", "--weight-decay", "0.01"]

# name: initial model, recipe, options
RUNS: dict[str, tuple[str, str, list[str]]] = {
    "plain": (MINILM, "plain", GENTLE),
    "joint": (MINILM, "joint", GENTLE),
    "ebert-0.8-128": ("plain", "ebert", ["--target-ratio", "0.8", "--ffn-block", "128"]),
    "ebert-0.6-128": ("plain", "ebert", ["--target-ratio", "0.6", "--ffn-block", "128"]),
    "joint-ebert-0.6-128": ("joint", "ebert", ["--target-ratio", "0.6", "--ffn-block", "128"]),
    "ebert-0.8-1": ("plain", "ebert", ["--target-ratio", "0.8"]),
    "ebert-0.6-1": ("plain", "ebert", ["--target-ratio", "0.6"]),
}


def main() -> None:
    """Train the runs that are not finished, or measure the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(RUNS))
    parser.add_argument("--measure", action="store_true", help="evaluate the finished runs instead of training")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        if args.measure:
            measure(name, args)
        else:
            train(name, args)


def train(name: str, args: argparse.Namespace) -> None:
    """Run `offramp train` in a separate process."""
    start, recipe, options = RUNS[name]
    output = args.work / name
    if (output / "config.json").is_file():
        return
    source = args.models / start if start == MINILM else args.work / start
    command = [sys.executable, "-m", "offramp", "train", str(source), "--task", "sst-2", "--data-dir", str(args.data)]
    command += ["--recipe", recipe, *COMMON, *options, "--output", str(output)]
    print(f"{datetime.now(UTC):%H:%M} {name}", flush=True)
    subprocess.run([*command, *(["--resume"] if output.exists() else [])], check=True)


def measure(name: str, args: argparse.Namespace) -> None:
    """Evaluate a model and save its scores, kept units, operations and seconds."""
    model, run = args.work / name, args.work / f"{name}-run"
    if not (model / "config.json").is_file():
        print(f"{name} is not trained yet")
        return
    command = [sys.executable, "-m", "offramp", "evaluate", str(model), "--policy", "entropy", "--output", str(run)]
    start = time.time()
    subprocess.run([*command, "--overwrite"], check=True)
    results = json.loads((run / "results.json").read_text())
    records = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    records[name] = make_record(name, results, round(time.time() - start))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(records, indent=1) + "\n")


def make_record(name: str, results: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Return what the page shows of an evaluation."""
    return {
        "run": name,
        "exits": [{key: point[key] for key in ("layer", "scores", "flops")} for point in results["exits"]],
        "width": results["width"],
        "live": [
            {key: point[key] for key in ("policy", "score", "agreement", "mean_layers", "seconds", "measured_speedup")}
            for point in results["live"]
        ],
        "plain_seconds": results["plain_seconds"],
        "rows": results["data"]["rows"],
        "seconds": seconds,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    main()
