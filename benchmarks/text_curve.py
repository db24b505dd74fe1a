"""How many layers `offramp adapt` saves by the number of texts, and what variations of few texts bring.

    python benchmarks/text_curve.py --models DIR --data GLUE --work DIR [--only minilm-sst2] [--texts 10000]

Classifiers and rows are those of adapt_results.py (WORK is shared with it). Exits are trained and selected on recorded
states (`recorded_exits.py`) of the first texts of each case, with a guarantee of 2 % (5 % for newsgroups); unused rows
and the dev set measure them. `variations` is the number per text. Finished runs are skipped. Results go to
benchmarks/results/text_curve.json, from which write_adapt.py writes a section of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapt_results import CASES, fine_tune, split
from exit_ablation import options_of
from offramp.adaptation.texts import UserTexts, split_texts
from offramp.core.machine import cpu_name
from offramp.model.exit_spec import CONVOLUTION
from offramp.training.imitation.variations import vary
from recorded_exits import load, record_all, select, train_and_trace

RESULTS = Path(__file__).parent / "results" / "text_curve.json"
MAX_DEV = 3000
SETTINGS: dict[str, list[tuple[int, int]]] = {  # case: (texts, variations of each)
    "minilm-sst2": [
        *((texts, variations) for texts in (1000, 2000) for variations in (0, 3, 8)),
        (10_000, 0),
        (10_000, 3),
        (30_000, 0),
        (50_000, 0),
    ],
    "minilm-r52": [(1000, 0), (1000, 3), (3500, 0)],
    "minilm-newsgroups-single": [(1000, 0), (1000, 3), (5000, 0)],
}


def run(case_name: str, texts: int, variations: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train and select exits with this many texts, and measure them."""
    case = next(case for case in CASES if case.name == case_name)
    rows = split(case, args)
    user, first, unseen = case.sizes
    if texts > first:  # further rows behind the unused ones, which stay unused
        more = split(case.with_sizes((user, first, unseen + texts - first)), args).unseen[unseen:]
        rows = replace(rows, texts=rows.texts + more)
    guarantee, max_length = options_of(case)
    classifier = fine_tune(case, args, rows)
    parts = {
        name: [row[0] if len(row) == 1 else row for row, _ in getattr(rows, name)]
        for name in ("texts", "unseen", "dev")
    }
    splits = split_texts(UserTexts(parts["texts"][:texts], None), guarantee, np.empty(0, np.uint64))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        model = load(classifier, CONVOLUTION, max_length)
        training = [*splits.training, *vary(splits.training, variations, 42)]
        tested: dict[str, list[Any]] = {"selection": list(splits.selection), "test": list(splits.test)}
        tested |= {"unseen": parts["unseen"], "dev": parts["dev"][:MAX_DEV]}
        states, _ = record_all(model, {"training": training, **tested}, Path(work))
        traces, operations = train_and_trace(model, states.pop("training"), states)
    spec = guarantee.for_model(model.config.answer_type, model.config.labels, model.config.answer_options)
    result = select(traces, operations, replace(spec, class_risk=None), with_zero=True)
    record = {"case": case.name, "texts": texts, "variations": variations, "risk": guarantee.risk}
    return record | {"seconds": round(time.monotonic() - start), **result}


def main() -> None:
    """Run all settings that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--data", required=True, help="official GLUE folder")
    parser.add_argument("--work", required=True, help="folder of the runs, shared with adapt_results.py")
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--texts", type=int, nargs="*", help="only the settings with these numbers of texts")
    args = parser.parse_args()
    about: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "torch": torch.__version__}
    for name in args.only:
        for texts, variations in SETTINGS[name]:
            key = (name, texts, variations)
            if args.texts and texts not in args.texts:
                continue
            if any((entry["case"], entry["texts"], entry["variations"]) == key for entry in finished()):
                continue
            entry = run(*key, args) | about
            print(json.dumps(entry), flush=True)
            RESULTS.write_text(json.dumps({"runs": [*finished(), entry]}, indent=1) + "\n", "utf-8")


def finished() -> list[dict[str, Any]]:
    """Return the runs so far."""
    runs: list[dict[str, Any]] = json.loads(RESULTS.read_text())["runs"] if RESULTS.is_file() else []
    return runs


if __name__ == "__main__":
    main()
