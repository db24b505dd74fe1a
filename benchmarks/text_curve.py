"""How much `offramp adapt` saves by the number of texts, with and without variations of them.

    python benchmarks/text_curve.py MODEL --data GLUE --work DIR [--texts 1000 2000 …] [--variations 0 3]

MODEL is a classifier that was fine-tuned on the first 12,000 rows of SST-2 in the order of adapt_results.py (its case
minilm-sst2). Texts are other training rows without their labels; 4,000 unused rows and the dev set measure the result:
layers, predictions that change, and the time of the adapted model compared with the best full-depth int8 of the same
runtime, both with one thread. Finished runs are skipped. Results go to benchmarks/results/text_curve.json, from which
write_results.py writes a section of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from adapt_results import CASES, Row, split
from offramp import AdaptiveModel
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.evaluation.timing import time_policies
from offramp.exports.exporter import Exporter
from offramp.exports.options import ExportOptions, Texts

RESULTS = Path(__file__).parent / "results" / "text_curve.json"
MOST = 50_000
THRESHOLDS = np.geomspace(0.005, 0.4, 16)


def read(args: argparse.Namespace) -> tuple[list[str], dict[str, list[str]]]:
    """Return the texts to adapt with, and those that measure the result."""
    case = next(case for case in CASES if case.name == "minilm-sst2")
    user, texts, _ = case.sizes
    everything = split(case.with_sizes((user, texts + MOST, 0)), args)
    parts = split(case, args)
    used = {row[0] for row in (*parts.user, *parts.unseen)}
    pool = [row[0][0] for row in everything.texts if row[0] not in used]
    return pool, {"unseen": _texts(parts.unseen), "dev": _texts(parts.dev)}


def _texts(rows: list[Row]) -> list[str]:
    return [texts[0] for texts, _ in rows]


def full_depth(model: AdaptiveModel, texts: list[str]) -> Runner:
    """Return the classifier in int8 without early exits."""
    options = ExportOptions("onnx", "static", force=True, threads=1)
    exporter = Exporter(model, Texts([*texts[:256]]), options, quiet=True)
    return exporter.runner(exporter.make())


def fewest_layers(runner: Runner, texts: list[str], full: Any) -> float:
    """Return how many times fewer layers run if the threshold is chosen on these texts so that at most 2 % change.

    Without the chance of a test on few texts, this shows how good the exits are.
    """
    best, name = 1.0, runner.config.exit_policy.name
    for threshold in THRESHOLDS:
        early = runner.answer(texts, policy=name, threshold=float(threshold), quiet=True)
        if (early.values != full).mean() <= 0.02:
            best = max(best, runner.config.num_layers / max(float(early.layer.mean()), 1e-9))
    return best


def run(
    args: argparse.Namespace,
    count: int,
    variations: int,
    pool: list[str],
    sets: dict[str, list[str]],
    full: dict[str, Any],
) -> dict[str, Any]:
    """Adapt with `count` texts and measure the result."""
    folder, start = Path(args.work) / f"{count}-{variations}", time.monotonic()
    result = offramp.adapt(
        args.model,
        pool[:count],
        output=folder,
        backend="onnx",
        threads=1,
        variations=variations,
        class_risk="none",
        overwrite=True,
    )
    record: dict[str, Any] = {"texts": count, "variations": variations, "seconds": time.monotonic() - start}
    if not result:
        return record | {"reason": result.reason}
    runner = result.load(threads=1)
    original = AdaptiveModel.from_pretrained(args.model)
    record |= {"exits": list(result.layers), "policy": str(runner.config.exit_policy), "precision": runner.dtype}
    baseline = full_depth(original, pool)
    for name, texts in sets.items():
        early = runner.answer(texts, quiet=True)
        timing = time_policies(runner, texts[:512], [runner.config.exit_policy], [baseline])
        record[name] = {
            "differ": float((early.values != full[name]).mean()),
            "fewer_layers": runner.config.num_layers / float(early.layer.mean()),
            "over_int8": timing.full[0].cpu / timing.policies[0].cpu,
        }
    record["at_2_percent"] = {name: fewest_layers(runner, texts, full[name]) for name, texts in sets.items()}
    return record


def main() -> None:
    """Run all counts of texts that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the fine-tuned classifier")
    parser.add_argument("--data", required=True, help="official GLUE folder")
    parser.add_argument("--work", required=True, help="folder for the adapted models")
    parser.add_argument("--texts", type=int, nargs="+", default=[1000, 2000, 3000, 10_000, 30_000, 50_000])
    parser.add_argument("--variations", type=int, nargs="+", default=[0, 3])
    args = parser.parse_args()
    torch.set_num_threads(1)
    pool, sets = read(args)
    runner = AdaptiveModel.from_pretrained(args.model).runner()
    answers = {name: runner.answer(texts, policy="never", quiet=True).values for name, texts in sets.items()}
    about: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "torch": torch.__version__}
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else about | {"runs": []}
    for count in args.texts:
        for variations in args.variations:
            if any((entry["texts"], entry["variations"]) == (count, variations) for entry in results["runs"]):
                continue
            record = run(args, count, variations, pool, sets, answers)
            results["runs"].append(record)
            print(json.dumps(record), flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
