"""What a long run shows: a bar with the loss, and each exit's score on dev as it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from offramp.training.scores import table

__all__ = ["Progress"]


class Progress(TrainerCallback):
    """On standard error; the bar only on a terminal."""

    def __init__(self, stage: str, layers: Sequence[int], metric: str):
        self.stage, self.layers, self.metric = stage, list(layers), metric
        self.bar: tqdm[Any] | None = None
        self.told = False  # the table's head
        self.line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar where the run starts (a resumed one in the middle)."""
        if state.is_world_process_zero:
            silent = not sys.stderr.isatty()
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.stage, disable=silent)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One update more."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """The loss beside the bar; without a terminal a line a minute."""
        if self.bar is None or not logs or "loss" not in logs:
            return
        self.bar.set_postfix(loss=f"{logs['loss']:.3f}")
        if self.bar.disable and time.monotonic() - self.line > 60:
            self.line = time.monotonic()
            told = f"{self.stage}: {state.global_step:,} of {state.max_steps:,} updates, loss {logs['loss']:.3f}"
            print(told, file=sys.stderr, flush=True)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """A line per dev set."""
        if not state.is_world_process_zero or not metrics:
            return
        loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
        for prefix in sorted({key.removesuffix("mean") for key in metrics if key.endswith("_mean")}):
            flat = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
            name = f"{self.stage} {state.epoch or 0:.2f} {prefix.removeprefix('eval').strip('_')}".strip()
            head, line = table([(f"{name:<24}", flat)], self.layers, self.metric).split("\n")
            shown = line + ("" if loss is None else f"   loss {loss:.3f}")
            tqdm.write(shown if self.told else f"{head}\n{shown}", file=sys.stderr)
            self.told = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the bar."""
        if self.bar is not None:
            self.bar.close()
