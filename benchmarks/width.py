"""What pruning heads and channels per input is worth in seconds: measured ÷ counted, per batch, block and kept share.

A random encoder, so that quality plays no part; what every row keeps in every layer is drawn beforehand and forced, the
gates are computed all the same. The plain encoder (the library's own forward pass) and the gated one share weights, get
the same batches and take turns; a batch's time is the median of its repeats. `counted` is the ratio of operations,
gates included; `measured` the ratio of seconds.

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
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.originals.width.flops import layer_flops
from offramp.originals.width.spec import Width
from setting import make_tokenizer, read_texts

LAYERS, HEADS = 12, 12
SHARES, BATCHES, BLOCKS = (0.8, 0.6, 0.4), (1, 8, 32), (1, 64, 128, 256)
GROUPS = {1: 1, 64: 3, 128: 3, 256: 3}  # heads that go together, by the block: 1 as published
FULL = 128  # tokens of a long row
TEXTS = 64


def main() -> None:
    """Race every setting, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda given: [int(one) for one in given.split(",")], default=[768, 384])
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
    """Every setting of one encoder."""
    lengths = real_lengths()
    for block in BLOCKS:
        model = make_model(size, block)
        for kind, batch, share in itertools.product(("real", "full"), BATCHES, SHARES):
            if block == 1 and kind == "full" and batch > 1:
                continue  # masked there, as with real lengths
            yield race(model, lengths if kind == "real" else [FULL] * TEXTS, kind, batch, share, repeats)


def real_lengths() -> list[int]:
    """Tokens of real sentences."""
    texts = read_texts(None, TEXTS)
    tokenizer = make_tokenizer(read_texts(None, 5000))
    return [min(FULL, len(ids)) for ids in tokenizer(texts)["input_ids"]]


def make_model(size: int, block: int) -> AdaptiveModel:
    """An encoder of twelve layers with gates, and one exit."""
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
    """The plain encoder and the gated one on the same batches, in turns."""
    draw = torch.Generator().manual_seed(1)
    seconds, plain, counted, full = 0.0, 0.0, 0.0, 0.0
    ordered = sorted(lengths)
    count = {1: 6, 8: 16, 32: 32}[batch]  # enough to tell, quick enough to finish
    ordered = ordered[:: len(ordered) // count][:count]
    for start in range(0, len(ordered), batch):
        some = torch.tensor(ordered[start : start + batch])
        kept = force(model, len(some), share, draw)
        inputs = make_batch(some)
        width, usual = timed(model, inputs, repeats)
        seconds, plain = seconds + width, plain + usual
        one, whole = operations(model, some, kept)
        counted, full = counted + one, full + whole
    row = {"size": model.config.hidden_size, "block": model.config.gating.block, "lengths": kind, "batch": batch}
    row |= {"kept": share, "counted": full / counted, "measured": plain / seconds}
    return row | {"ratio": row["measured"] / row["counted"]}


def force(model: AdaptiveModel, rows: int, share: float, draw: torch.Generator) -> Tensor:
    """Masks for every gate; returns how many heads and channels each row keeps, summed over layers."""
    assert model.gates is not None
    width, total = model.gates.width, torch.zeros(rows, 2)
    for layer in range(1, LAYERS + 1):
        for place, (gate, times) in enumerate(
            zip(model.gates.of_layer(layer), (width.head_group, width.block), strict=True)
        ):
            mask = (torch.rand(rows, gate.expand.out_features, generator=draw) < share).float()
            gate.mask = lambda logits, mask=mask: mask  # type: ignore[method-assign, misc]
            total[:, place] += mask.sum(1) * times
    return total


def make_batch(lengths: Tensor) -> dict[str, Tensor]:
    """Random tokens, padded."""
    longest = int(lengths.max())
    mask = torch.arange(longest) < lengths[:, None]
    return {"input_ids": torch.randint(5, 999, mask.shape) * mask, "attention_mask": mask.long()}


def timed(model: AdaptiveModel, batch: dict[str, Tensor], repeats: int) -> tuple[float, float]:
    """Median seconds: gated, plain."""
    ways: tuple[Callable[[], Any], ...] = (
        lambda: model(**batch),
        lambda: model.stepper.full_model(Batch.from_tensors(**batch)),
    )
    took: list[list[float]] = [[], []]
    with torch.inference_mode():
        for turn in range(repeats + 1):
            for way, times in zip(ways, took, strict=True):
                began = time.perf_counter()
                way()
                if turn:  # the first is for warming up
                    times.append(time.perf_counter() - began)
    return statistics.median(took[0]), statistics.median(took[1])


def operations(model: AdaptiveModel, lengths: Tensor, kept: Tensor) -> tuple[float, float]:
    """Counted, exactly: gated and full; padding counts on both sides, since both compute it."""
    blocks = layer_flops(model.config, "exact")
    length = float(lengths.max())
    gates = LAYERS * (blocks.head_predictor + blocks.channel_predictor)
    run = kept[:, 0] * blocks.head(length) + kept[:, 1] * blocks.channel(length) + gates
    return float(run.sum()), float(blocks.full(length)) * len(lengths)


if __name__ == "__main__":
    main()
