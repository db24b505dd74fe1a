"""Calibrate trained models and see whether the guarantee holds on dev: the last figures of docs/results/quality.md.

    python benchmarks/calibration_results.py --data DIR --work DIR [--runs NAME,NAME]

WORK holds the runs of training_results.py, DATA the official GLUE folder. Each run's copy is calibrated on the rows
that its training set aside, at risk 2 % and confidence 90 %, once for disagreement and once for loss of accuracy; then
dev says what became of it, in rows, layers and seconds. Since GLUE's training rows are phrases and its dev rows
sentences, a third figure is of dev alone: calibrated on one random half, checked on the other, over and over.
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
from offramp.calibration.sequence import fixed_sequence, run_sequence
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
    """How often the guarantee is broken on the half that it was not made on, and what it saves on the mean."""
    rng = np.random.default_rng(0)
    policies = grid("entropy", trace.model_spec)
    broken, layers, excess = 0, [], []
    for _ in range(HALVES):
        order = rng.permutation(len(trace))
        mine, other = (trace.take(np.sort(part)) for part in np.array_split(order, 2))
        tested = run_sequence(Risk(guarantee, mine), policies, rng.permutation(len(mine)))
        last = fixed_sequence([one.p_value for one in tested], guarantee.level)
        if last is None:
            layers.append(float(trace.depth))
            excess.append(0.0)
            continue
        replayed = other.replay(tested[last].policy)
        risk = float(Risk(guarantee, other).losses(replayed).mean())
        broken += risk > guarantee.risk
        layers.append(float(replayed.layer.mean()))
        excess.append(risk)
    return {
        "halves": HALVES,
        "rows": len(trace) // 2,
        "above": broken / HALVES,
        "mean_risk": float(np.mean(excess)),
        "speedup": trace.depth / float(np.mean(layers)),
    }


def one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A run's two promises, on the rows they were made on and on dev."""
    source = args.work / name
    given = DataOptions(task="sst-2", data_dir=str(args.data / "GLUE"))
    runner = load(source)
    data = load_rows(str(source), runner.config, given, "dev")
    dev = obtain_trace(runner, data, args.work / f"{name}.dev.trace")
    scorer = Scorer(dev, data.metrics)
    told: dict[str, Any] = {}
    policies = []
    for of in ("disagreement", "accuracy"):
        guarantee = Guarantee(of, RISK, CONFIDENCE)
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / name
            shutil.copytree(source, copy)
            outcome = calibrate(load(copy), given, guarantee, trace_file=args.work / f"{name}.calibration.trace")
        print(f"{name}, {of}: {outcome.sentence}", flush=True)
        if outcome.policy is None:
            told[of] = {"sentence": outcome.sentence}
            continue
        policies.append((of, outcome.policy))
        evidence = {key: outcome.evidence[key] for key in ("policy", "losses", "p_value", "test_rows", "speedup")}
        told[of] = {"calibration": evidence, "dev": asdict(scorer.operating_point(outcome.policy))}
        told[of]["halves"] = halves(dev, guarantee)
    timings = time_policies(runner, data.rows.texts, [policy for _, policy in policies])
    for (of, _), seconds in zip(policies, timings.seconds, strict=True):
        told[of] |= {"seconds": seconds, "measured": timings.plain / seconds}
    return {
        "run": name,
        "risk": RISK,
        "confidence": CONFIDENCE,
        "full": scorer.exits()[-1].scores["acc"],
        "rows": len(dev),
        "live_rows": len(timings.rows),
        "plain_seconds": timings.plain,
        "promises": told,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        **{key: dev.about["machine"][key] for key in ("cpu", "threads", "dtype")},
    }


def main() -> None:
    """Calibrate what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", default=",".join(RUNS))
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in args.runs.split(","):
        record = one(name, args)
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
