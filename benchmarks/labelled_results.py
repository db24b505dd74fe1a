"""Compare `offramp adapt` with training on labels: recipes on the texts of SST-2 that `adapt` gets without labels.

    python benchmarks/labelled_results.py --models DIR --data GLUE --work DIR

Folders are those of adapt_results.py. The user's model of its case minilm-sst2 is trained further with each recipe and
calibrated. Writes benchmarks/results/labelled.json, from which write_adapt.py makes a table of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

import offramp
from adapt_results import CASES, Row, SplitRows, fine_tune, measure, offramp_call, split, write_rows
from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "labelled.json"
RECIPES = ("deebert", "deebert-attention", "joint", "joint-attention", "romebert-sd-attention")
GUARANTEE = ["--risk", "0.02", "--confidence", "0.9"]


def with_labels(recipe: str, plain: Path, parts: SplitRows, work: Path) -> dict[str, Any]:
    """Train the user's model for three epochs with a recipe on the same texts with labels, and calibrate it."""
    folder, labelled = work / recipe, write_rows(work / "labelled.csv", parts.texts, True)
    name, attention = recipe.removesuffix("-attention"), recipe.endswith("-attention")
    training = ["--recipe", name, "--epochs", "0,3" if name == "deebert" else "3"]
    training += ["--heads", "attention"] if attention else []
    files = ["--train-file", labelled, "--dev-file", work / "dev.csv", "--text-column", "text"]
    if not (folder / "scores.json").is_file():
        offramp_call("train", plain, *training, *files, "--calibration-split", "0.2", "--output", folder, "--overwrite")
    scores = json.loads((folder / "scores.json").read_text())
    result: dict[str, Any] = {"by_exit": [exit_scores[scores["metric"]] for exit_scores in scores["dev"]["dev"]]}
    sets = {"unseen": parts.unseen, "dev": parts.dev[:3000]}
    if calibrate(folder):
        result["own"] = compare_with_own_full_model(folder, sets)
    if calibrate(folder, "--reference", plain):
        result |= {name: measure(folder, plain, rows, None) for name, rows in sets.items()}
    return result


def calibrate(folder: Path, *more: Any) -> bool:
    """Calibrate a model; return whether the guarantee holds for some threshold (otherwise the exit code is 1)."""
    command = [sys.executable, "-m", "offramp", "calibrate", folder, *GUARANTEE, "--policy", "entropy", *more]
    return subprocess.run([str(word) for word in command], check=False).returncode == 0


def compare_with_own_full_model(folder: Path, sets: dict[str, list[Row]]) -> dict[str, Any]:
    """Return changed predictions and fewer layers compared with the model's own last exit."""
    runner, results = offramp.load(folder), {}
    for name, rows in sets.items():
        texts: list[Any] = [parts[0] if len(parts) == 1 else parts for parts, _ in rows]
        early, full = runner.answer(texts), runner.answer(texts, policy="never")
        changed = float((early.logits.argmax(1) != full.logits.argmax(1)).mean())
        results[name] = {"differ": changed, "fewer_layers": runner.config.num_layers / float(early.layer.mean())}
    return results


def main() -> None:
    """Train all recipes and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    args = parser.parse_args()
    case = next(case for case in CASES if case.name == "minilm-sst2")
    parts = split(case, args)
    plain, work = fine_tune(case, args, parts), Path(args.work) / case.name
    result: dict[str, Any] = {"case": case.name, "model": case.model, "sizes": case.sizes}
    result |= {"date": date.today().isoformat(), "cpu": cpu_name()}
    result |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    result["labelled"] = {recipe: with_labels(recipe, plain, parts, work) for recipe in RECIPES}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
