"""Train every recipe on real data and record the score of every exit: the results of docs/results/quality.md.

    python benchmarks/training_results.py --models DIR --data DIR --work DIR [--only minilm-sst2] [--list]

MODELS contains all-MiniLM-L6-v2 and all-mpnet-base-v2, DATA the official GLUE and ELUE folders, WORK the runs (weights
and checkpoints, several gigabytes). Finished runs are skipped, interrupted ones are resumed from their last checkpoint.
Each run writes a small record and a trace of its dev logits to benchmarks/results/training, from which write_results.py
writes the page and its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from offramp import AdaptiveModel
from offramp.core.machine import cpu_name
from offramp.data.task_files import read_split
from offramp.data.tasks import TASKS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "training"

# the prototype's settings, the same for every recipe, so that only the recipe differs
COMMON = ["--batch-size", "32", "--warmup", "0.1", "--weight-decay", "0.01"]
PROTOTYPE_OPTIONS = ["--learning-rate", "5e-5", "--head-learning-rate", "5e-5", *COMMON]
# with offramp's default learning rate for linear heads, a result of the runs above (see docs/results/quality.md)
FAST_HEADS = ["--learning-rate", "5e-5", "--head-learning-rate", "1e-3", *COMMON]
GENTLE = ["--learning-rate", "2e-5", "--head-learning-rate", "1e-3", *COMMON]
QUICK = "-quick-heads"  # part of the names of saved runs
MINILM = "all-MiniLM-L6-v2"
MINILM_RECIPES = (
    "deebert",
    "romebert-sd-gr",
    "joint",
    "romebert-sd",
    "pabee",
    "elasticbert",
    "deebert-sd",
    "berxit-alternating",
    "self-distillation",
    "mixed",
)


@dataclass(frozen=True)
class Run:
    """A call of `offramp train`."""

    name: str
    model: str
    task: str
    recipe: str
    options: list[str] = field(default_factory=list)
    seed: int = 42


def minilm(recipe: str, seed: int = 42, variant: str = "") -> Run:
    """Return a run on GLUE SST-2, one epoch; `mixed` has half an epoch per stage, so that the total is the same."""
    options = ["--epochs", "0.5,0.5" if recipe == "mixed" else "1", "--max-length", "64", "--save-every", "500"]
    options += ["--select", "none", *(FAST_HEADS if variant else PROTOTYPE_OPTIONS)]
    return Run(f"minilm-sst2-{recipe}{variant}-{seed}", MINILM, "sst-2", recipe, options, seed)


def mpnet(recipe: str, variant: str = "") -> Run:
    """Return a run on 20,000 rows of GLUE SST-2, two epochs."""
    options = ["--epochs", "2", "--max-length", "64", "--train-rows", "20000", "--save-every", "200"]
    options += ["--select", "none", *(GENTLE if variant else PROTOTYPE_OPTIONS)]
    return Run(f"mpnet-sst2-{recipe}{variant}-42", "all-mpnet-base-v2", "sst-2", recipe, options)


def recipe_name(recipe: str, layers: int | None) -> str:
    """Return a recipe's name with the number of layers, if the model is truncated."""
    return recipe if layers is None else f"{recipe}{layers}"


def layers_option(layers: int | None) -> list[str]:
    """Return the option that keeps only the first layers."""
    return [] if layers is None else ["--num-layers", str(layers)]


def elue(recipe: str, layers: int | None = None) -> Run:
    """Return a run on ELUE SST-2, two epochs."""
    options = ["--epochs", "2", "--max-length", "64", "--select", "none", *FAST_HEADS]
    name = f"minilm-elue-sst2-{recipe_name(recipe, layers)}-42"
    return Run(name, MINILM, "elue-sst-2", recipe, [*options, *layers_option(layers)])


def small(task: str, recipe: str, seed: int, layers: int | None = None) -> Run:
    """Return a run on a small GLUE task, which keeps the best epoch by the mean score of the exits.

    Three epochs, five on RTE: 600 to 1,000 updates. With three epochs and a batch size of 32, RTE has only 213 updates:
    the loss hardly changed (0.666), and the dev score was 54.5.
    """
    epochs = "5" if task == "rte" else "3"
    options = ["--epochs", epochs, "--max-length", "128", *FAST_HEADS, "--batch-size", "16"]
    return Run(
        f"minilm-{task}-{recipe_name(recipe, layers)}-{seed}",
        MINILM,
        task,
        recipe,
        [*options, *layers_option(layers)],
        seed,
    )


BEST = "joint"
RUNS = [
    *(minilm(recipe) for recipe in MINILM_RECIPES),
    *(minilm("deebert", seed) for seed in (1, 2)),
    *(minilm(recipe, 42, QUICK) for recipe in ("deebert", BEST)),
    *(minilm(BEST, seed, QUICK) for seed in (1, 2)),
    *(mpnet(recipe) for recipe in ("deebert", "joint")),
    *(mpnet(recipe, QUICK) for recipe in (BEST, "romebert-sd-gr", "plain", "deebert")),
    *(elue("static", layers) for layers in (2, 3, 4)),
    elue("elasticbert"),
    *(small("rte", recipe, seed) for recipe in ("deebert", BEST) for seed in (42, 1, 2)),
    small("mrpc", "deebert", 42),
    *(small("mrpc", BEST, seed) for seed in (42, 1, 2)),
    *(small("sts-b", recipe, 42) for recipe in ("pabee", "berxit-lte")),
    *(small("sts-b", "static", 42, layers) for layers in (1, 2)),  # an upper bound for the first exits
]


def train(run: Run, args: argparse.Namespace) -> None:
    """Train or resume in a separate process, then save the record and the trace."""
    output = args.work / run.name
    suite = "ELUE" if run.task.startswith("elue-") else "GLUE"
    command = [sys.executable, "-m", "offramp", "train", str(args.models / run.model), "--task", run.task]
    command += ["--data-dir", str(args.data / suite), "--recipe", run.recipe, "--seed", str(run.seed), *run.options]
    command += ["--output", str(output), *(["--resume"] if output.exists() else [])]
    print(f"{datetime.now(UTC):%H:%M} {run.name}", flush=True)
    start = time.time()
    subprocess.run(command, check=True)
    save(run, output, round(time.time() - start, 1), args)


def save(run: Run, output: Path, seconds: float, args: argparse.Namespace) -> None:
    """Save scores and settings as JSON, and every exit's dev logits as float16."""
    scores = json.loads((output / "scores.json").read_text())
    stages = [
        {key: stage.get(key) for key in ("stage", "epochs", "updates", "seconds", "resumed")}
        for stage in scores["stages"]
    ]
    record = {
        "run": run.name,
        "model": run.model,
        "task": run.task,
        "recipe": run.recipe,
        "recipe_options": scores["recipe_options"],
        "options": run.options,
        "seed": run.seed,
        "metric": scores["metric"],
        "layers": scores["layers"],
        "dev": scores["dev"],
        "rows": scores["rows"],
        "stages": stages,
        "seconds": seconds,
        "evaluations": evaluations(scores),
        "angles": [
            entry["gr_angle"] for stage in scores["stages"] for entry in stage["history"] if "gr_angle" in entry
        ],
        "date": scores["finished"][:10],
        "cpu": cpu_name(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "versions": scores["versions"],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    model = AdaptiveModel.from_pretrained(output)
    rows = read_split(
        TASKS[run.task], TASKS[run.task].dev_splits[0], args.data / ("ELUE" if "elue" in run.task else "GLUE")
    )
    logits, uncertainty = run_all_exits(model, rows.texts)
    trace: dict[str, NDArray[Any]] = {"logits": logits, "labels": np.asarray(rows.labels, dtype=np.float32)}
    if uncertainty is not None:
        trace["uncertainty"] = uncertainty
    save_file(trace, RESULTS / f"{run.name}.safetensors")
    (RESULTS / f"{run.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(output / "checkpoints", ignore_errors=True)


def evaluations(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every exit's dev scores during training."""
    keys = [f"eval_exit_{layer}_{scores['metric']}" for layer in scores["layers"]]
    return [
        {"stage": stage["stage"], "epoch": round(entry["epoch"], 2), "exits": [round(entry[key], 6) for key in keys]}
        for stage in scores["stages"]
        for entry in stage["history"]
        if keys[0] in entry
    ]


def run_all_exits(model: AdaptiveModel, texts: list[Any]) -> tuple[NDArray[np.float16], NDArray[np.float16] | None]:
    """Return every exit's logits (rows, exits, classes), and the LTE module's estimates, if any."""
    logits, uncertainty = [], []
    for start in range(0, len(texts), 64):
        examples = texts[start : start + 64]
        second = None if isinstance(examples[0], str) else [pair[1] for pair in examples]
        first = examples if second is None else [pair[0] for pair in examples]
        batch = model.tokenizer(first, second, truncation=True, max_length=128, padding=True, return_tensors="pt")
        with torch.no_grad():
            out = model(**batch, policy="never", output_exits=True)
        logits.append(out.exit_logits.half().numpy())
        if out.exit_uncertainty is not None:
            uncertainty.append(out.exit_uncertainty.half().numpy())
    return np.concatenate(logits), np.concatenate(uncertainty) if uncertainty else None


def main() -> None:
    """Train the runs that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", help="only runs whose names start with this")
    parser.add_argument("--list", action="store_true", help="list finished and missing runs")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if not run.name.startswith(args.only):
            continue
        is_finished = (RESULTS / f"{run.name}.json").is_file()
        if args.list:
            print("done   " if is_finished else "missing", run.name)
        elif not is_finished:
            train(run, args)


if __name__ == "__main__":
    main()
