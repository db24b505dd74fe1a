"""What the exit on the embeddings and the convolutions contribute to `offramp adapt`, on several tasks.

    python benchmarks/exit_ablation.py --models DIR --data GLUE --work DIR [--strangers DIR] [--only minilm-sst2]

Cases, rows and fine-tuned models are those of adapt_results.py, whose WORK folder is shared (fine-tuned models are
reused); with --strangers also classifiers that were not fine-tuned here (`get-strangers`). The encoder runs once, in
ONNX Runtime int8. On its states, heads are trained with and without convolutions; exits and thresholds are selected
with and without layer 0 as `adapt` does, but by counted operations instead of measured times, and the guarantee is
tested as `adapt` does. The reference is the full depth of the same encoder. Finished cases are skipped. Records go
to benchmarks/results/ablation, from which write_adapt.py writes a section of docs/results/quality.md.
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

from adapt_results import CASES, Case, SplitRows, fine_tune, split
from offramp.adaptation.texts import UserTexts, split_texts
from offramp.calibration.risks import Guarantee
from offramp.core.machine import cpu_name
from offramp.model.exit_spec import CONVOLUTION
from offramp.training.imitation.variations import vary
from recorded_exits import load, record_all, select, train_and_trace

RESULTS = Path(__file__).parent / "results" / "ablation"
VARIATIONS = 3
PARTS = ("texts", "unseen", "dev")
MAX_DEV = 3000


def options_of(case: Case) -> tuple[Guarantee, int | None]:
    """Return the guarantee and the maximum length of a case."""
    length = case.option("--max-length")
    guarantee = Guarantee(risk=case.option("--risk") or 0.02, tolerance=case.option("--tolerance"))
    return guarantee, None if length is None else int(length)


def run_case(case: Case, args: argparse.Namespace) -> None:
    """Measure a case in all four settings, unless it is finished."""
    record = RESULTS / f"{case.name}.json"
    if record.is_file():
        return
    rows: SplitRows = split(case, args)
    guarantee, max_length = options_of(case)
    start, settings = time.monotonic(), []
    folder = fine_tune(case, args, rows)
    texts = {name: [row[0] if len(row) == 1 else row for row, _ in getattr(rows, name)] for name in PARTS}
    splits = split_texts(UserTexts(texts["texts"], None), guarantee, np.empty(0, np.uint64))
    parts: dict[str, list[Any]] = {name: getattr(splits, name) for name in ("training", "selection", "test")}
    parts["training"] += vary(parts["training"], VARIATIONS, 42)
    parts |= {"unseen": texts["unseen"], "dev": texts["dev"][:MAX_DEV]}
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        states, precision = record_all(load(folder, CONVOLUTION, max_length), parts, Path(work))
        training = states.pop("training")
        for channels in (CONVOLUTION, 0):
            model = load(folder, channels, max_length)
            traces, operations = train_and_trace(model, training, states)
            spec = guarantee.for_model(model.config.answer_type, model.config.labels, model.config.answer_options)
            for with_zero in (True, False):
                result = select(traces, operations, replace(spec, class_risk=None), with_zero)
                settings.append({"channels": channels, "layer_0": with_zero, **result})
                print(case.name, json.dumps(settings[-1]), flush=True)
    result = {"case": case.name, "model": case.model, "sizes": case.sizes, "risk": guarantee.risk, "encoder": precision}
    result |= {"date": date.today().isoformat(), "cpu": cpu_name(), "threads": torch.get_num_threads()}
    result |= {"seconds": round(time.monotonic() - start), "settings": settings}
    RESULTS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def main() -> None:
    """Run all cases, or those named by --only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--strangers", help="folder of get-strangers")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    for case in CASES:
        if (not args.only or case.name in args.only) and (args.strangers or not case.stranger):
            run_case(case, args)


if __name__ == "__main__":
    main()
