"""Question answering on real data: all-MiniLM-L6-v2 on SQuAD, plain, with exits, and with width pruning.

    python benchmarks/squad_results.py --models DIR --data DIR --work DIR [--only plain,joint] [--measure]

MODELS contains all-MiniLM-L6-v2, DATA the SQuAD files (train_subset.json etc.), WORK the runs. Finished runs are
skipped, interrupted ones are resumed from their last checkpoint. With `--measure`, every finished model is calibrated
on the questions that its training set aside and evaluated on dev, with its time compared with the plain encoder's; the
machine should be idle then. The results are in benchmarks/results/squad.json, from which write_results.py writes the
page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from offramp.core.machine import cpu_name

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "squad.json"
MINILM = "all-MiniLM-L6-v2"
ONE = ("squad", "train_subset.json", "dev_subset.json")
TWO = ("squad2", "train_subset-v2.0.json", "dev_subset-v2.0.json")
COMMON = ["--batch-size", "16", "--select", "none", "--save-every", "50", "--eval-every", "1000"]
COMMON += ["--warmup", "0.1", "--weight-decay", "0.01"]
LEARN = ["--epochs", "2", "--learning-rate", "1e-4"]

# name: initial model, data, recipe, options
RUNS: dict[str, tuple[str, tuple[str, str, str], str, list[str]]] = {
    "plain": (MINILM, ONE, "plain", LEARN),
    "joint": (MINILM, ONE, "joint", LEARN),
    "ebert-0.8": ("plain", ONE, "ebert", ["--epochs", "0.5", "--target-ratio", "0.8", "--ffn-block", "128"]),
    "joint-2.0": ("joint", TWO, "joint", ["--epochs", "1", "--learning-rate", "5e-5"]),
}
GUARANTEE = ["--risk", "0.05", "--confidence", "0.9", "--policy", "confidence"]


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
        (measure if args.measure else train)(name, args)


def train(name: str, args: argparse.Namespace) -> None:
    """Run `offramp train` in a separate process."""
    start, (task, train_file, dev_file), recipe, options = RUNS[name]
    output = args.work / name
    if (output / "config.json").is_file():
        return
    source = args.models / start if start == MINILM else args.work / start
    command = [sys.executable, "-m", "offramp", "train", str(source), "--task", task, "--recipe", recipe]
    command += ["--train-file", str(args.data / train_file), "--dev-file", str(args.data / dev_file)]
    command += [*COMMON, *options, "--output", str(output)]
    print(f"{datetime.now(UTC):%H:%M} {name}", flush=True)
    subprocess.run([*command, *(["--resume"] if output.exists() else [])], check=True)


def measure(name: str, args: argparse.Namespace) -> None:
    """Calibrate a model with exits, then evaluate it and save scores, curves and seconds."""
    model, run = args.work / name, args.work / f"{name}-run"
    if not (model / "config.json").is_file():
        print(f"{name} is not trained yet")
        return
    offramp = [sys.executable, "-m", "offramp"]
    sentence = None
    if len(json.loads((model / "config.json").read_text())["exits"]) > 1:
        completed = subprocess.run([*offramp, "calibrate", str(model), *GUARANTEE], capture_output=True, text=True)
        sentence = (completed.stdout or completed.stderr).strip().splitlines()[0]
        print(sentence)
    subprocess.run([*offramp, "evaluate", str(model), "--output", str(run), "--overwrite"], check=True)
    results = json.loads((run / "results.json").read_text())
    saved: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results["data"]["name"] = Path(results["data"]["name"]).name  # without the local path
    saved[name] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "guarantee": sentence,
        "risk": float(GUARANTEE[1]),
        "official": results["questions"],
        "trained": json.loads((model / "scores.json").read_text())["rows"],
        **{key: results[key] for key in ("data", "exits", "chosen", "width", "live", "plain_seconds")},
        "curves": {name: [_curve_point(point) for point in points] for name, points in results["policies"].items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


def _curve_point(point: dict[str, Any]) -> list[float]:
    """Return the values that the figure shows."""
    return [round(point[name], 4) for name in ("mean_layers", "score", "agreement")]


if __name__ == "__main__":
    main()
