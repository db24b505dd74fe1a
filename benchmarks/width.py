"""Speedup of pruning heads and channels per input: measured ÷ counted, by batch size, block size and kept share.

The encoder has random weights, and the units that each row keeps are drawn and forced, so that the result does not
depend on a task; the gates are still computed. The plain encoder (Hugging Face's forward pass) and the gated one share
weights and batches and take turns; a batch's time is the median of its repeats. `counted` is the ratio of operations,
gates included; `measured` is the ratio of seconds.

    python benchmarks/width.py [--sizes 768,384] [--threads 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import BertConfig

from offramp import AdaptiveModel
from offramp.core.batch import Batch
from offramp.core.machine import cpu_name
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.width.flops import layer_flops
from offramp.originals.width.spec import Width
from setting import make_tokenizer, read_texts

LAYERS, HEADS = 12, 12
SHARES, BATCHES, BLOCKS = (0.8, 0.6, 0.4), (1, 8, 32), (1, 64, 128, 256)
GROUPS = {1: 1, 64: 3, 128: 3, 256: 3}  # heads per group, by block size; 1 as published
MAX_LENGTH = 128  # tokens
NUM_TEXTS = 64


def main() -> None:
    """Measure every setting, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda sizes: [int(size) for size in sizes.split(",")], default=[768, 384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for size in args.sizes:
        for row in race_all(size, args.repeats):
            print(
                "  ".join(f"{value:>9}" if not isinstance(value, float) else f"{value:9.2f}" for value in row.values())
            )
            rows.append(row)
    if args.json is not None:
        about = {"date": str(date.today()), "cpu": cpu_name(), "threads": args.threads, "layers": LAYERS}
        about |= {"torch": torch.__version__, "transformers": transformers.__version__}
        args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def race_all(size: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Measure every setting of an encoder."""
    lengths = real_lengths()
    for block in BLOCKS:
        model = make_model(size, block)
        for kind, batch, share in itertools.product(("real", "full"), BATCHES, SHARES):
            if block == 1 and kind == "full" and batch > 1:
                continue  # masked instead of skipped, as with real lengths
            yield race(model, lengths if kind == "real" else [MAX_LENGTH] * NUM_TEXTS, kind, batch, share, repeats)


def real_lengths() -> list[int]:
    """Return the lengths of real sentences in tokens."""
    texts = read_texts(None, NUM_TEXTS)
    tokenizer = make_tokenizer(read_texts(None, 5000))
    return [min(MAX_LENGTH, len(ids)) for ids in tokenizer(texts)["input_ids"]]


def make_model(size: int, block: int) -> AdaptiveModel:
    """Return an encoder of twelve layers with gates and one exit."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=size,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * size,
    )
    model = AdaptiveModel(AdaptiveConfig(backbone=config, exits=[ExitSpec(LAYERS, "linear", "mean")]))
    model.add_gates(Width(target=0.6, block=block, head_group=GROUPS[block]).to_dict())
    return model.eval()


def race(model: AdaptiveModel, lengths: list[int], kind: str, batch: int, share: float, repeats: int) -> dict[str, Any]:
    """Time the plain encoder and the gated one on the same batches, in turns."""
    generator = torch.Generator().manual_seed(1)
    seconds, plain, operations, full = 0.0, 0.0, 0.0, 0.0
    ordered = sorted(lengths)
    count = {1: 6, 8: 16, 32: 32}[batch]
    ordered = ordered[:: len(ordered) // count][:count]
    for start in range(0, len(ordered), batch):
        batch_lengths = torch.tensor(ordered[start : start + batch])
        kept = force_masks(model, len(batch_lengths), share, generator)
        inputs = make_batch(batch_lengths)
        gated_seconds, plain_seconds = timed(model, inputs, repeats)
        seconds, plain = seconds + gated_seconds, plain + plain_seconds
        gated_operations, full_operations = count_operations(model, batch_lengths, kept)
        operations, full = operations + gated_operations, full + full_operations
    row = {"size": model.config.hidden_size, "block": model.config.gating.block, "lengths": kind, "batch": batch}
    row |= {"kept": share, "counted": full / operations, "measured": plain / seconds}
    return row | {"ratio": row["measured"] / row["counted"]}


def force_masks(model: AdaptiveModel, rows: int, share: float, generator: torch.Generator) -> Tensor:
    """Draw masks for every gate; return how many heads and channels each row keeps, summed over layers."""
    assert model.gates is not None
    width, total = model.gates.width, torch.zeros(rows, 2)
    for layer in range(1, LAYERS + 1):
        gates = zip(model.gates.of_layer(layer), (width.head_group, width.block), strict=True)
        for column, (gate, group) in enumerate(gates):
            mask = (torch.rand(rows, gate.expand.out_features, generator=generator) < share).float()
            gate.mask = lambda logits, mask=mask: mask  # type: ignore[method-assign, misc]
            total[:, column] += mask.sum(1) * group
    return total


def make_batch(lengths: Tensor) -> dict[str, Tensor]:
    """Return random tokens, padded."""
    longest = int(lengths.max())
    mask = torch.arange(longest) < lengths[:, None]
    return {"input_ids": torch.randint(5, 999, mask.shape) * mask, "attention_mask": mask.long()}


def timed(model: AdaptiveModel, batch: dict[str, Tensor], repeats: int) -> tuple[float, float]:
    """Return the median seconds of the gated and the plain encoder."""
    functions: tuple[Callable[[], Any], ...] = (
        lambda: model(**batch),
        lambda: model.stepper.full_model(Batch.from_tensors(**batch)),
    )
    times: list[list[float]] = [[], []]
    with torch.inference_mode():
        for turn in range(repeats + 1):
            for function, measured in zip(functions, times, strict=True):
                start = time.perf_counter()
                function()
                if turn:  # the first turn is a warm-up
                    measured.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def count_operations(model: AdaptiveModel, lengths: Tensor, kept: Tensor) -> tuple[float, float]:
    """Return the exact operations, gated and full; both include padding, since both compute it."""
    flops = layer_flops(model.config, "exact")
    length = float(lengths.max())
    gates = LAYERS * (flops.head_predictor + flops.channel_predictor)
    run = kept[:, 0] * flops.head(length) + kept[:, 1] * flops.channel(length) + gates
    return float(run.sum()), float(flops.full(length)) * len(lengths)


if __name__ == "__main__":
    main()
