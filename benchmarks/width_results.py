"""Width on real data: EBERT's gates on all-MiniLM-L6-v2 and GLUE SST-2, beside the plain model and exits.

    python benchmarks/width_results.py --models DIR --data DIR --work DIR [--only plain,ebert-0.8-128] [--measure]

MODELS holds all-MiniLM-L6-v2, DATA the official GLUE folder, WORK the runs. Trainings go in order; a finished one is
left alone, a torn one goes on from its last checkpoint. With `--measure` every finished model is evaluated on dev, its
seconds against the plain encoder in turns; for that the machine should have nothing else to do. Figures go to
benchmarks/results/width.json, the page is made by write_width.py.
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

# name: the model that it starts from, its recipe, its options
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
    """Train what is not trained, then measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(RUNS))
    parser.add_argument("--measure", action="store_true", help="evaluate the finished ones instead of training")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        if args.measure:
            measure(name, args)
        else:
            train(name, args)


def train(name: str, args: argparse.Namespace) -> None:
    """One call of `offramp train`, in a process of its own."""
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
    """Scores, what is kept, operations and seconds of one model."""
    model, run = args.work / name, args.work / f"{name}-run"
    if not (model / "config.json").is_file():
        print(f"{name} is not trained yet")
        return
    command = [sys.executable, "-m", "offramp", "evaluate", str(model), "--policy", "entropy", "--output", str(run)]
    began = time.time()
    subprocess.run([*command, "--overwrite"], check=True)
    results = json.loads((run / "results.json").read_text())
    told = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    told[name] = figures(name, results, round(time.time() - began))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


def figures(name: str, results: dict[str, Any], seconds: int) -> dict[str, Any]:
    """What the page needs of an evaluation."""
    return {
        "run": name,
        "exits": [{key: one[key] for key in ("layer", "scores", "flops")} for one in results["exits"]],
        "width": results["width"],
        "live": [
            {key: one[key] for key in ("policy", "score", "agreement", "mean_layers", "seconds", "measured_speedup")}
            for one in results["live"]
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
