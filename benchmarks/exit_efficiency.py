"""How much of the computed speedup is measured: measured ÷ computed, by batch size.

The encoder has random weights, and each text's exit layer is drawn uniformly over the exits and forced, so that the
result does not depend on a task. The policy still computes its entropies, so that the cost of the decision is included.
All models share the encoder's weights and the same length-sorted batches, tokenization is timed, and the models take
turns on every batch; a batch's time is the median of its repeats. `limit` is the ratio that the layers alone reach,
without heads and decisions.

    python benchmarks/exit_efficiency.py [--texts FILE] [--heads pooler] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from offramp import AdaptiveModel
from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.machine import cpu_name
from offramp.core.stepper import ExitOutput
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.policies import Memory, Never, Policy
from setting import Texts, make_tokenizer, read_texts


@dataclass(frozen=True)
class Forced(Policy):
    """The entropy policy with a threshold per row and exit, so that each row exits where it was drawn to."""

    name: ClassVar[str] = "forced"
    thresholds: Tensor  # (rows, exits)

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's entropy with its own threshold."""
        thresholds = self.thresholds if memory is None else memory["thresholds"]
        return output.answer_type.entropy(output.logits) < thresholds[:, output.exit - 1], {"thresholds": thresholds}


def thresholds_for(layers: Tensor, exits: Sequence[int]) -> Tensor:
    """Return thresholds above any entropy at the drawn exit, and below any entropy elsewhere."""
    return torch.where(layers[:, None] == torch.tensor(exits), 1e9, -1.0)


def make_plain(args: argparse.Namespace) -> BertForSequenceClassification:
    """Return an ordinary Hugging Face classifier with random weights."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8000,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 32,
        intermediate_size=4 * args.hidden,
    )
    return BertForSequenceClassification(config).eval()


def make_adaptive(plain: BertForSequenceClassification, heads: str, layers: Sequence[int]) -> AdaptiveModel:
    """Return a model with exits that shares the encoder's weights in memory."""
    pooling = "first" if heads == "pooler" else "mean"
    config = AdaptiveConfig(backbone=plain.config, exits=[ExitSpec(layer, heads, pooling) for layer in layers])
    model = AdaptiveModel(config).eval()
    model.backbone = plain.bert
    return model


Entry = Callable[[dict[str, Tensor], Tensor], Tensor]


def entries(
    plain: BertForSequenceClassification, models: dict[str, AdaptiveModel], thresholds: dict[str, Tensor]
) -> dict[str, Entry]:
    """Return the functions to time: the plain model twice, and for each set of exits never, forced, and layers only."""
    runs: dict[str, Entry] = {name: lambda batch, rows: plain(**batch).logits for name in ("plain", "plain again")}
    for name, model in models.items():
        runs[f"never {name}"] = partial(_never, model)
        runs[f"adaptive {name}"] = partial(_forced, model, thresholds[name])
        runs[f"layers {name}"] = partial(_layers_only, model, thresholds[name] > 0)
    return runs


def _never(model: AdaptiveModel, batch: dict[str, Tensor], rows: Tensor) -> Tensor:
    return run(model.stepper, Batch.from_tensors(**batch), Never()).logits


def _forced(model: AdaptiveModel, thresholds: Tensor, batch: dict[str, Tensor], rows: Tensor) -> Tensor:
    return run(model.stepper, Batch.from_tensors(**batch), Forced(thresholds[rows])).logits


def _layers_only(model: AdaptiveModel, drawn: Tensor, batch: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Run the same rows through the same layers without heads or decisions: an upper bound for the loop."""
    stepper = model.stepper
    exit_numbers = drawn[rows].int().argmax(1).numpy() + 1  # of the drawn exits
    state = stepper.embed(Batch.from_tensors(**batch))
    for point in stepper.exits:
        state = stepper.family.step(stepper.encoder, state, point.layer)
        remaining = np.flatnonzero(exit_numbers > point.number)
        if len(remaining) == 0:
            break
        if len(remaining) < len(exit_numbers):
            state, exit_numbers = stepper.keep(state, remaining), exit_numbers[remaining]
    return state.hidden


def race(
    runs: dict[str, Entry],
    tokenizer: PreTrainedTokenizerFast,
    texts: Texts,
    order: Tensor,
    batch: int,
    repeats: int,
) -> dict[str, float]:
    """Return texts per second of each entry; entries take turns, and a batch's time is the median of its repeats."""
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    names = list(runs)
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in batches] for name in names}
    for repeat in range(-1, repeats):  # one round to warm up
        for number, rows in enumerate(batches):
            batch_texts = [texts[row] for row in rows.tolist()]
            turn = (number + repeat) % len(names)
            for name in names[turn:] + names[:turn]:
                start = time.perf_counter()
                encoded = tokenizer(batch_texts, padding=True, return_tensors="pt")
                runs[name](dict(encoded), rows)
                if repeat >= 0:
                    seconds[name][number].append(time.perf_counter() - start)
    return {name: len(order) / sum(map(statistics.median, times)) for name, times in seconds.items()}


def row(batch: int, speed: dict[str, float], name: str, computed: float) -> dict[str, float]:
    """Return one row of the result."""
    return {
        "batch": batch,
        "plain": speed["plain"],
        "plain_again": speed["plain again"],
        "never": speed[f"never {name}"],
        "adaptive": speed[f"adaptive {name}"],
        "layers_only": speed[f"layers {name}"],
        "computed_speedup": computed,
        "measured_speedup": speed[f"adaptive {name}"] / speed["plain"],
    }


def show(title: str, rows: Sequence[dict[str, float]]) -> None:
    """Print the table."""
    print(f"\n{title}")
    names = ("plain/s", "again/s", "never/s", "adapt/s", "never", "computed", "measured", "ratio", "limit")
    print(f"{'batch':>5}" + "".join(f"{name:>10}" for name in names))
    for result in rows:
        speeds = [result[key] for key in ("plain", "plain_again", "never", "adaptive")]
        ratios = [result["never"] / result["plain"], result["computed_speedup"], result["measured_speedup"]]
        ratios.append(result["measured_speedup"] / result["computed_speedup"])
        ratios.append(result["layers_only"] / result["plain"] / result["computed_speedup"])
        line = "".join(f"{speed:>10.1f}" for speed in speeds) + "".join(f"{ratio:>10.3f}" for ratio in ratios)
        print(f"{result['batch']:>5}{line}")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="one text per line (default: Python's documentation)")
    parser.add_argument("--count", type=int, default=256, help="number of texts (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument(
        "--heads",
        choices=["linear", "pooler"],
        default="linear",
        help="offramp's default or the originals' (default: %(default)s)",
    )
    parser.add_argument("--batches", default="1,8,32,64", help="batch sizes (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    texts = read_texts(args.texts, args.count)
    tokenizer = make_tokenizer(texts)
    lengths = torch.tensor([len(ids) for ids in tokenizer(texts)["input_ids"]])
    order = lengths.argsort()
    plain = make_plain(args)
    few = tuple(args.layers * quarter // 4 for quarter in (1, 2, 3, 4))
    exits = {"all": tuple(range(1, args.layers + 1)), "few": few}
    models = {name: make_adaptive(plain, args.heads, layers) for name, layers in exits.items()}
    draw = np.random.default_rng(args.seed)
    drawn = {name: torch.from_numpy(draw.choice(layers, size=len(texts))) for name, layers in exits.items()}
    thresholds = {name: thresholds_for(drawn[name], layers) for name, layers in exits.items()}
    computed = {name: args.layers / float(drawn[name].float().mean()) for name in exits}

    about: dict[str, Any] = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": args.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "texts": len(texts),
        "mean_tokens": float(lengths.float().mean()),
        "layers": args.layers,
        "hidden": args.hidden,
        "heads": args.heads,
        "repeats": args.repeats,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows: list[dict[str, float]] = []
    rows_few: list[dict[str, float]] = []
    with torch.inference_mode():
        for batch in map(int, args.batches.split(",")):
            speed = race(entries(plain, models, thresholds), tokenizer, texts, order, batch, args.repeats)
            rows.append(row(batch, speed, "all", computed["all"]))
            rows_few.append(row(batch, speed, "few", computed["few"]))
    show(f"exits on all {args.layers} layers", rows)
    show(f"exits on {', '.join(str(layer) for layer in few)}", rows_few)
    if args.json:
        args.json.write_text(json.dumps({"about": about, "rows": rows, "rows_few": rows_few}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
