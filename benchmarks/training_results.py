"""Train every recipe on real data and keep what each exit scored: the figures of docs/results/quality.md.

    python benchmarks/training_results.py --models DIR --data DIR --work DIR [--only minilm-sst2] [--list]

MODELS holds all-MiniLM-L6-v2 and all-mpnet-base-v2, DATA the official GLUE and ELUE folders, WORK the runs (weights,
checkpoints; some gigabytes). Runs go in order; a finished one is left alone, a torn one goes on from its last
checkpoint. Each leaves a small record and a trace of its dev logits in benchmarks/results/training; the page and its
figures are made from these by write_results.py.
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

# the sketch's settings, for every recipe alike, so that only the recipe differs
COMMON = ["--batch-size", "32", "--warmup", "0.1", "--weight-decay", "0.01"]
PROTOTYPE_OPTIONS = ["--learning-rate", "5e-5", "--head-learning-rate", "5e-5", *COMMON]
# with our default for bare heads, which came out of the runs above (see docs/results/quality.md)
QUICK_HEADS = ["--learning-rate", "5e-5", "--head-learning-rate", "1e-3", *COMMON]
GENTLE = ["--learning-rate", "2e-5", "--head-learning-rate", "1e-3", *COMMON]
QUICK = "-quick-heads"
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
    """One call of `offramp train`."""

    name: str
    model: str
    task: str
    recipe: str
    options: list[str] = field(default_factory=list)
    seed: int = 42


def minilm(recipe: str, seed: int = 42, variant: str = "") -> Run:
    """All of GLUE SST-2, one epoch; `mixed` has half an epoch per stage, so that it costs as much as the others."""
    options = ["--epochs", "0.5,0.5" if recipe == "mixed" else "1", "--max-length", "64", "--save-every", "500"]
    options += ["--select", "none", *(QUICK_HEADS if variant else PROTOTYPE_OPTIONS)]
    return Run(f"minilm-sst2-{recipe}{variant}-{seed}", MINILM, "sst-2", recipe, options, seed)


def mpnet(recipe: str, variant: str = "") -> Run:
    """20,000 rows of GLUE SST-2, two epochs."""
    options = ["--epochs", "2", "--max-length", "64", "--train-rows", "20000", "--save-every", "200"]
    options += ["--select", "none", *(GENTLE if variant else PROTOTYPE_OPTIONS)]
    return Run(f"mpnet-sst2-{recipe}{variant}-42", "all-mpnet-base-v2", "sst-2", recipe, options)


def named(recipe: str, layers: int | None) -> str:
    """A recipe, and how many layers are left of the model."""
    return recipe if layers is None else f"{recipe}{layers}"


def cut(layers: int | None) -> list[str]:
    """The option that keeps the first layers only."""
    return [] if layers is None else ["--num-layers", str(layers)]


def elue(recipe: str, layers: int | None = None) -> Run:
    """ELUE SST-2, two epochs."""
    options = ["--epochs", "2", "--max-length", "64", "--select", "none", *QUICK_HEADS]
    name = f"minilm-elue-sst2-{named(recipe, layers)}-42"
    return Run(name, MINILM, "elue-sst-2", recipe, [*options, *cut(layers)])


def small(task: str, recipe: str, seed: int, layers: int | None = None) -> Run:
    """A small GLUE set in full, the best epoch by the exits' mean.

    Six to ten hundred updates: three epochs, for RTE five. Three in batches of 32 are 213 updates on RTE: the loss had
    hardly moved (0.666), dev stood at 54.5.
    """
    epochs = "5" if task == "rte" else "3"
    options = ["--epochs", epochs, "--max-length", "128", *QUICK_HEADS, "--batch-size", "16"]
    return Run(f"minilm-{task}-{named(recipe, layers)}-{seed}", MINILM, task, recipe, [*options, *cut(layers)], seed)


BEST = "joint"  # with quick heads
RUNS = [
    *(minilm(recipe) for recipe in MINILM_RECIPES),
    *(minilm("deebert", seed) for seed in (1, 2)),
    *(minilm(recipe, 42, QUICK) for recipe in ("deebert", BEST)),
    *(minilm(BEST, seed, QUICK) for seed in (1, 2)),
    *(mpnet(recipe) for recipe in ("deebert", "joint")),
    *(mpnet(recipe, QUICK) for recipe in (BEST, "romebert-sd-gr", "plain", "deebert")),
    *(elue("static", layers) for layers in (2, 3, 4)),
    elue("elasticbert"),
    *(small(task, recipe, seed) for task in ("rte", "mrpc") for recipe in ("deebert", BEST) for seed in (42, 1, 2)),
    *(small("sts-b", recipe, 42) for recipe in ("pabee", "berxit-lte")),
    *(small("sts-b", "static", 42, layers) for layers in (1, 2)),  # whether its first exits could be better
]


def train(run: Run, args: argparse.Namespace) -> None:
    """Train, or go on, in a process of its own; then keep the record and the trace."""
    output = args.work / run.name
    suite = "ELUE" if run.task.startswith("elue-") else "GLUE"
    command = [sys.executable, "-m", "offramp", "train", str(args.models / run.model), "--task", run.task]
    command += ["--data-dir", str(args.data / suite), "--recipe", run.recipe, "--seed", str(run.seed), *run.options]
    command += ["--output", str(output), *(["--resume"] if output.exists() else [])]
    print(f"{datetime.now(UTC):%H:%M} {run.name}", flush=True)
    began = time.time()
    subprocess.run(command, check=True)
    keep(run, output, round(time.time() - began, 1), args)


def keep(run: Run, output: Path, seconds: float, args: argparse.Namespace) -> None:
    """The scores and the settings as JSON, every exit's dev logits as float16."""
    told = json.loads((output / "scores.json").read_text())
    stages = [
        {key: stage.get(key) for key in ("stage", "epochs", "updates", "seconds", "resumed")}
        for stage in told["stages"]
    ]
    record = {
        "run": run.name,
        "model": run.model,
        "task": run.task,
        "recipe": run.recipe,
        "recipe_options": told["recipe_options"],
        "options": run.options,
        "seed": run.seed,
        "metric": told["metric"],
        "layers": told["layers"],
        "dev": told["dev"],
        "rows": told["rows"],
        "stages": stages,
        "seconds": seconds,
        "evaluations": evaluations(told),
        "angles": [entry["gr_angle"] for stage in told["stages"] for entry in stage["history"] if "gr_angle" in entry],
        "date": told["finished"][:10],
        "cpu": cpu_name(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "versions": told["versions"],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    model = AdaptiveModel.from_pretrained(output)
    rows = read_split(
        TASKS[run.task], TASKS[run.task].dev_splits[0], args.data / ("ELUE" if "elue" in run.task else "GLUE")
    )
    logits, uncertainty = every_exit(model, rows.texts)
    trace: dict[str, NDArray[Any]] = {"logits": logits, "labels": np.asarray(rows.labels, dtype=np.float32)}
    if uncertainty is not None:
        trace["uncertainty"] = uncertainty
    save_file(trace, RESULTS / f"{run.name}.safetensors")
    (RESULTS / f"{run.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(output / "checkpoints", ignore_errors=True)


def evaluations(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Every exit's dev score on the way."""
    keys = [f"eval_exit_{layer}_{told['metric']}" for layer in told["layers"]]
    return [
        {"stage": stage["stage"], "epoch": round(entry["epoch"], 2), "exits": [round(entry[key], 6) for key in keys]}
        for stage in told["stages"]
        for entry in stage["history"]
        if keys[0] in entry
    ]


def every_exit(model: AdaptiveModel, texts: list[Any]) -> tuple[NDArray[np.float16], NDArray[np.float16] | None]:
    """Every exit's logits (rows, exits, classes), and LTE's estimates where the model has some."""
    logits, uncertainty = [], []
    for start in range(0, len(texts), 64):
        some = texts[start : start + 64]
        pairs = None if isinstance(some[0], str) else [pair[1] for pair in some]
        firsts = some if pairs is None else [pair[0] for pair in some]
        batch = model.tokenizer(firsts, pairs, truncation=True, max_length=128, padding=True, return_tensors="pt")
        with torch.no_grad():
            out = model(**batch, policy="never", output_exits=True)
        logits.append(out.exit_logits.half().numpy())
        if out.exit_uncertainty is not None:
            uncertainty.append(out.exit_uncertainty.half().numpy())
    return np.concatenate(logits), np.concatenate(uncertainty) if uncertainty else None


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", help="only runs whose name begins so")
    parser.add_argument("--list", action="store_true", help="say what is there and what is missing")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if not run.name.startswith(args.only):
            continue
        there = (RESULTS / f"{run.name}.json").is_file()
        if args.list:
            print("done   " if there else "missing", run.name)
        elif not there:
            train(run, args)


if __name__ == "__main__":
    main()
