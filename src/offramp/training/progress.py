"""Progress of a run: a progress bar with the loss, and a table of the exits' dev scores."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from offramp.training.scores import score_table

__all__ = ["Progress"]


class Progress(TrainerCallback):
    """Show progress on standard error; the bar only on a terminal."""

    def __init__(self, stage: str, layers: Sequence[int], metric: str):
        self.stage, self.layers, self.metric = stage, list(layers), metric
        self.bar: tqdm[Any] | None = None
        self.has_header = False  # whether the table's header is printed
        self.last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar, at the current step of a resumed run."""
        if state.is_world_process_zero:
            no_terminal = not sys.stderr.isatty()
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.stage, disable=no_terminal)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Show the loss next to the bar; without a terminal, print a line per minute."""
        if self.bar is None or not logs or "loss" not in logs:
            return
        self.bar.set_postfix(loss=f"{logs['loss']:.3f}")
        if self.bar.disable and time.monotonic() - self.last_line > 60:
            self.last_line = time.monotonic()
            line = f"{self.stage}: {state.global_step:,} of {state.max_steps:,} updates, loss {logs['loss']:.3f}"
            print(line, file=sys.stderr, flush=True)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Print a line per dev set."""
        if not state.is_world_process_zero or not metrics:
            return
        loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
        for prefix in sorted({key.removesuffix("mean") for key in metrics if key.endswith("_mean")}):
            scores = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
            name = f"{self.stage} {state.epoch or 0:.2f} {prefix.removeprefix('eval').strip('_')}".strip()
            header, line = score_table([(f"{name:<24}", scores)], self.layers, self.metric).split("\n")
            line += "" if loss is None else f"   loss {loss:.3f}"
            tqdm.write(line if self.has_header else f"{header}\n{line}", file=sys.stderr)
            self.has_header = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
