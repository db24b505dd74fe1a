"""Calibrate trained models and check whether the guarantee holds on dev, for docs/results/quality.md.

    python benchmarks/calibration_results.py --data DIR --work DIR [--runs NAME,NAME]

WORK contains the runs of training_results.py, DATA the official GLUE folder. A copy of each run is calibrated on the
rows that its training set aside, at 2 % risk and 90 % confidence, for disagreement and for loss of accuracy, and then
measured on dev: risk, layers and seconds. Since GLUE SST-2's training rows are phrases and its dev rows sentences, the
calibration is also repeated on dev alone: on one random half, and checked on the other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from offramp import load
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.run import calibrate
from offramp.calibration.sequence import run_sequence
from offramp.data.rows import DataOptions, load_rows
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.points import Scorer
from offramp.evaluation.timing import time_policies
from offramp.evaluation.traces.trace import Trace
from offramp.policies.grids import grid

RESULTS = Path(__file__).parent / "results" / "calibration"
RUNS = ("minilm-sst2-joint-quick-heads-42", "mpnet-sst2-joint-quick-heads-42")
RISK, CONFIDENCE = 0.02, 0.9
HALVES = 400  # random halves of dev


def halves(trace: Trace, guarantee: Guarantee) -> dict[str, float]:
    """Return how often the risk on the other half is above the guarantee, and the mean speedup."""
    rng = np.random.default_rng(0)
    policies = grid("entropy", trace.model_spec)
    num_above, layers, risks = 0, [], []
    for _ in range(HALVES):
        order = rng.permutation(len(trace))
        calibration, other = (trace.take(np.sort(part)) for part in np.array_split(order, 2))
        passed = [setting for setting in run_sequence(Risk(guarantee, calibration), policies) if setting.passed]
        if not passed:
            layers.append(float(trace.depth))
            risks.append(0.0)
            continue
        replayed = other.replay(passed[-1].policy)
        risk = float(Risk(guarantee, other).losses(replayed).mean())
        num_above += risk > guarantee.risk
        layers.append(float(replayed.layer.mean()))
        risks.append(risk)
    return {
        "halves": HALVES,
        "rows": len(trace) // 2,
        "above": num_above / HALVES,
        "mean_risk": float(np.mean(risks)),
        "speedup": trace.depth / float(np.mean(layers)),
    }


def calibrate_run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return a run's two guarantees, on its calibration rows and on dev."""
    source = args.work / name
    data_options = DataOptions(task="sst-2", data_dir=str(args.data / "GLUE"))
    runner = load(source)
    data = load_rows(str(source), runner.config, data_options, "dev")
    dev = obtain_trace(runner, data, args.work / f"{name}.dev.trace")
    scorer = Scorer(dev, data.metrics)
    guarantees: dict[str, Any] = {}
    policies = []
    for risk_type in ("disagreement", "accuracy"):
        guarantee = Guarantee(risk_type, RISK, CONFIDENCE)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / name
            shutil.copytree(source, copy)
            outcome = calibrate(load(copy), data_options, guarantee, trace_file=args.work / f"{name}.calibration.trace")
        print(f"{name}, {risk_type}: {outcome.sentence}", flush=True)
        if outcome.policy is None:
            guarantees[risk_type] = {"sentence": outcome.sentence}
            continue
        policies.append((risk_type, outcome.policy))
        evidence = {key: outcome.evidence[key] for key in ("policy", "losses", "p_value", "test_rows", "speedup")}
        guarantees[risk_type] = {"calibration": evidence, "dev": asdict(scorer.operating_point(outcome.policy))}
        guarantees[risk_type]["halves"] = halves(dev, guarantee)
    timings = time_policies(runner, data.rows.texts, [policy for _, policy in policies])
    for (risk_type, _), seconds in zip(policies, timings.policies, strict=True):
        guarantees[risk_type] |= {"seconds": seconds.wall, "measured": timings.full[0].wall / seconds.wall}
    return {
        "run": name,
        "risk": RISK,
        "confidence": CONFIDENCE,
        "full": scorer.exits()[-1].scores["acc"],
        "rows": len(dev),
        "live_rows": len(timings.rows),
        "plain_seconds": timings.full[0].wall,
        "guarantees": guarantees,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        **{key: dev.about["machine"][key] for key in ("cpu", "threads", "dtype")},
    }


def main() -> None:
    """Calibrate the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", default=",".join(RUNS))
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in args.runs.split(","):
        record = calibrate_run(name, args)
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
