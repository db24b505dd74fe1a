"""Agreement of exit heads with the full model, per layer: with and without a convolution, few and many epochs.

    python benchmarks/head_convolution.py MODEL TEXTS [--text-column NAME] [--json FILE]

MODEL is a fine-tuned classifier with one prediction per text, TEXTS a file that `offramp adapt` could read. As in
`adapt`, heads on frozen hidden states learn the model's predictions on `--train` texts; the agreement is measured on
`--fresh` other texts, for `--seeds` seeds of the heads. Texts that an offramp model was trained on are left out. All
heads have a convolution here, to see on which layers it helps. From the record in benchmarks/results, write_results.py
writes a section of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.core.machine import cpu_name
from offramp.data.hashes import hash_texts
from offramp.data.input_data import resolve_input
from offramp.data.reading import Text
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.model.exit_spec import CONVOLUTION
from offramp.model.exits import Exits, Head
from offramp.training.holdout import read_hashes
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import States, record_states

RESULTS = Path(__file__).parent / "results" / "head_convolution.json"
ROWS = 256  # rows per batch when the agreement is measured


def read_texts(args: argparse.Namespace) -> list[Text]:
    """Return the unique texts that the model was not trained on, in random order."""
    data = resolve_input(args.texts, text_column=args.text_column)
    texts = sorted(set(data.read()))
    folder = Path(args.model)
    if (folder / "rows.safetensors").is_file():
        seen = np.isin(hash_texts(texts), read_hashes(folder)["train"])
        texts = [text for text, was_seen in zip(texts, seen, strict=True) if not was_seen]
    random.Random(0).shuffle(texts)
    if len(texts) < args.train + args.fresh:
        raise SystemExit(f"{len(texts):,} texts, but --train and --fresh need {args.train + args.fresh:,}.")
    return texts


def new_heads(model: AdaptiveModel, channels: int, seed: int) -> list[Head]:
    """Return untrained heads for the early exits, all with a convolution of this many channels."""
    config = model.config
    *early, last = config.exit_specs
    config.exits = [replace(spec, convolution=channels).to_dict() for spec in early] + [last.to_dict()]
    torch.manual_seed(seed)
    exits = Exits(config)
    return [exits.head(spec.layer) for spec in early]


@torch.no_grad()
def agreement(heads: Sequence[Head], states: States) -> list[float]:
    """Return the fraction of rows on which each head predicts what the full model predicts."""
    same, rows = np.zeros(len(heads)), len(states.lengths)
    for start in range(0, rows, ROWS):
        batch = np.arange(start, min(rows, start + ROWS))
        expected = states.teacher[batch].argmax(-1)
        for index, (head, state) in enumerate(zip(heads, states.encoder_states(batch), strict=True)):
            same[index] += int((head(head.features(state)).argmax(-1) == expected).sum())
    return [float(fraction) for fraction in same / rows]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train the heads in every setting; return the record."""
    texts = read_texts(args)
    model = load_with_new_exits(args.model, ExitOptions("auto", "attention"))
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        parts = {"train": texts[: args.train], "fresh": texts[args.train : args.train + args.fresh]}
        for name in parts:
            (Path(folder) / name).mkdir()
        states = {name: record_states(model, part, Path(folder) / name, quiet=True) for name, part in parts.items()}
        for seed, epochs, channels in product(range(args.seeds), args.epochs, (0, args.channels)):
            heads, start = new_heads(model, channels, seed), time.perf_counter()
            imitate(heads, states["train"], model.config.answer_type, ImitationOptions(epochs, seed=seed))
            seconds = time.perf_counter() - start
            run = {"seed": seed, "epochs": epochs, "channels": channels, "seconds": seconds}
            runs.append(run | {"agreement": agreement(heads, states["fresh"])})
            shown = "  ".join(f"{fraction:.3f}" for fraction in runs[-1]["agreement"])
            print(f"seed {seed}, {epochs:g} epochs, {channels} channels: {shown}  ({seconds:.0f} s)", flush=True)
    return {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "title": args.title or Path(args.model).name,
        "train": args.train,
        "fresh": args.fresh,
        "seeds": args.seeds,
        "layers": [point.layer for point in model.exits.points[:-1]],
        "runs": runs,
    }


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a fine-tuned classifier")
    parser.add_argument("texts", help="a file with texts")
    parser.add_argument("--text-column", help="column of the texts")
    parser.add_argument("--title", help="what the model is, for the page (default: its folder's name)")
    parser.add_argument("--train", type=int, default=8400, help="texts to train the heads on")
    parser.add_argument("--fresh", type=int, default=4000, help="texts to measure the agreement on")
    parser.add_argument("--epochs", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--channels", type=int, default=CONVOLUTION)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.json.write_text(json.dumps(measure(args), indent=1) + "\n")


if __name__ == "__main__":
    main()
